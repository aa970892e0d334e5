# /// script
# requires-python = ">=3.11"
# dependencies = ["prefixroute", "openai", "prometheus-client"]
#
# [tool.uv.sources]
# prefixroute = { path = "..", editable = true }
# ///
"""Chats that can be watched: their routing is told at http://127.0.0.1:9100/metrics.

They go on until interrupted. Watch them with ``prefixroute watch http://127.0.0.1:9100/metrics``,
or in Grafana, with the dashboard in ``grafana/``.
"""

import logging
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from openai import OpenAI, OpenAIError
from openai.types.chat import ChatCompletionMessageParam
from prometheus_client import start_http_server

from prefixroute import Router
from prefixroute.metrics import PrometheusObserver, RouterMetrics
from prefixroute.signals import EngineMetrics

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = os.environ.get("MODEL", "simulated-model")
PORT = int(os.environ.get("METRICS_PORT", "9100"))

GUIDES = [f"You are the guide of room {room} of a museum. Be brief. " * 100 for room in range(20)]
POPULAR = [20 / (room + 1) for room in range(20)]
AT_ONCE = 12
log = logging.getLogger("museum")


def chat(client: OpenAI, number: int) -> None:
    """Have a chat of three turns with one of the guides."""
    guide = random.choices(GUIDES, POPULAR)[0]
    messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": guide}]
    for turn in range(3):
        question = f"Visitor {number} would like to know more of picture {turn}. " * 10
        messages.append({"role": "user", "content": question})
        with client.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},  # tells the router what was cached
        ) as stream:
            words = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
        messages.append({"role": "assistant", "content": "".join(words)})


def main() -> None:
    stopped, numbers = threading.Event(), count()
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda *_: stopped.set())

    router = Router(
        ENDPOINTS,
        observers=[PrometheusObserver()],
        holdout=0.1,  # a tenth of the chats goes anywhere, to show what routing brings the others
    )
    RouterMetrics(router, hot_prefixes=8)
    server, thread = start_http_server(PORT, addr="127.0.0.1")
    print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)

    def chats(client: OpenAI) -> None:
        while not stopped.is_set():
            try:
                chat(client, next(numbers))
            except OpenAIError as error:
                log.warning("a chat ended early: %s", error)

    with router, router.wrap(OpenAI(api_key="-", max_retries=0)) as client, EngineMetrics(router):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            running = [pool.submit(chats, client) for _ in range(AT_ONCE)]
            stopped.wait()
        for one in running:
            one.result()
        print(repr(router.stats().holdout))
    server.shutdown()
    server.server_close()
    thread.join()


if __name__ == "__main__":
    main()
