"""A list of replicas in a file that is rewritten while chats go on: no call notices."""

import json
import os
import tempfile
from collections import Counter
from pathlib import Path

from openai import OpenAI

from prefixroute import Router
from prefixroute.signals import Discovery, FileSource

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = os.environ.get("MODEL", "simulated-model")

path = Path(tempfile.mkdtemp()) / "endpoints.json"


def write(urls: list[str]) -> None:
    """Replace the file at once, as a rename does."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"endpoints": [{"url": url, "weight": 1.0} for url in urls]}))
    new.replace(path)


def ask(client: OpenAI, number: int) -> str:
    """Ask one question; return who answered."""
    reply = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"Question {number}: what is {number} + 1? " * 20}],
        max_tokens=8,
    )
    return reply.http_response.extensions["prefixroute"].endpoint.url


write(ENDPOINTS[:-1])  # all but the last
source = FileSource(path)
with (
    Router(source.endpoints()) as router,
    Discovery(router, source, every_s=0.1),
    router.wrap(OpenAI(api_key="-")) as client,
):
    before = Counter(ask(client, number) for number in range(20))
    write(ENDPOINTS[1:])  # the first leaves, the last joins
    number = 20
    while ENDPOINTS[-1] not in {endpoint.url for endpoint in router.endpoints}:
        ask(client, number)  # goes on meanwhile
        number += 1
    after = Counter(ask(client, number) for number in range(number, number + 40))

for name, counts in (("before", before), ("after", after)):
    for url, count in sorted(counts.items()):
        print(name, url, count)
