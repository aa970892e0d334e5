"""An application in a cluster: it calls the replicas behind a service, as they come and go."""

import logging
import os

from openai import OpenAI

from prefixroute import Router
from prefixroute.signals import Discovery, KubernetesSource

SERVICE = os.environ.get("ENGINE_SERVICE", "engine")
PORT = os.environ.get("ENGINE_PORT", "http")
MODEL = os.environ.get("MODEL", "simulated-model")
QUESTIONS = int(os.environ.get("QUESTIONS", "1000000"))

logging.basicConfig(level=logging.INFO, format="%(message)s")
logging.getLogger("httpx").setLevel(logging.WARNING)

source = KubernetesSource(SERVICE, port=PORT)  # its own namespace
with (
    Router(source.endpoints()) as router,
    Discovery(router, source, drain_timeout_s=300.0),
    router.wrap(OpenAI(api_key="-")) as client,
):
    for number in range(QUESTIONS):
        client.chat.completions.create(
            model=MODEL,
            messages=[
                {"role": "system", "content": "You answer in one word. " * 40},
                {"role": "user", "content": f"Is {number} even?"},
            ],
            max_tokens=4,
        )
    print("done:", router)
