"""Importing prefixroute is light, and routing needs no HTTP library."""

from __future__ import annotations

import subprocess
import sys

import pytest

import prefixroute

_HEAVY = ("httpx", "httpx2", "tenacity", "typer", "rich", "openai", "anthropic", "asyncio", "ssl")

_BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"httpx", "httpx2", "httpcore", "httpcore2"}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Block())
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", _HEAVY)
def test_import_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, prefixroute; print({module!r} in sys.modules)"
    assert run(code).strip() == "False"


def test_routing_needs_no_http_library() -> None:
    code = (
        _BLOCK
        + "from prefixroute import Router\n"
        + "r = Router(['http://a:1', 'http://b:1'])\n"
        + "body = {'messages': [{'role': 'user', 'content': 'hi'}]}\n"
        + "print(r.route(body).reason.value, r.explain(body).decision.key)\n"
        + "with r.acquire(body) as lease:\n    lease.first_token(cached_tokens=1)\n"
        + "print(r.stats().in_flight)"
    )
    out = run(code).split()
    assert out[0] == "home"
    assert out[-1] == "0"


@pytest.mark.parametrize(
    "code",
    [
        "from openai import OpenAI; router.wrap(OpenAI(api_key='-'))",
        "from prefixroute.signals import EngineMetrics; EngineMetrics(router).start()",
    ],
)
def test_httpx_is_loaded_before_any_thread_needs_it(code: str) -> None:
    """OpenAI's SDK looks at it where it is loaded, and fails where that is half done."""
    made = "import sys; from prefixroute import Router; router = Router(['http://a:1']);"
    assert run(f"{made}{code}; print('httpx' in sys.modules)").strip() == "True"


def test_public_names_are_sorted_and_there() -> None:
    assert list(prefixroute.__all__) == sorted(prefixroute.__all__)
    assert all(hasattr(prefixroute, name) for name in prefixroute.__all__)
