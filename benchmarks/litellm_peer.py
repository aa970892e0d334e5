"""LiteLLM's Router on the same chats, in an environment and a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.engines.chat import MAX_TOKENS, Message, Reply
from tests.engines.replica import MODEL_NAME, Replica, Replicas
from tests.engines.workload import WorkloadResult, WorkloadSpec, run_workload
from tests.sdk.environments import environment
from tests.sdk.matrix import AS_OF, ENTRIES

__all__ = ["VARIANTS", "LiteLLM", "Variant", "litellm_version", "python_of_litellm", "run_litellm"]

_WORKER: Final = Path(__file__).with_name("litellm_worker.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to set LiteLLM's Router up.

    Attributes:
        checks: Its ``optional_pre_call_checks``. With ``prompt_caching`` the last message of every
            chat is marked with ``cache_control``: LiteLLM looks at marked prompts alone.
        environment: Variables that it reads.
    """

    checks: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None


VARIANTS: Final[Mapping[str, Variant]] = {
    "litellm": Variant(),
    "litellm prompt_caching": Variant(checks=("prompt_caching",)),
    "litellm prompt_caching, minimum 1": Variant(
        checks=("prompt_caching",), environment={"MINIMUM_PROMPT_CACHE_TOKEN_COUNT": "1"}
    ),
}
"""The default (``simple-shuffle``); the check that sends a marked prompt where its beginning went
before, which by itself looks at prompts of 1,024 tokens or more; the same for prompts of any
length."""


class LiteLLM:
    """The process; up from entering the ``with`` block until it is left.

    Args:
        endpoints: URLs by name.
        variant: How the Router is set up.
        seed: Of its random choices.
    """

    def __init__(self, endpoints: Mapping[str, str], variant: Variant, seed: int) -> None:
        self._config = {
            "endpoints": dict(endpoints),
            "checks": variant.checks,
            "seed": seed,
            "model": MODEL_NAME,
            "max_tokens": MAX_TOKENS,
        }
        self._environment = {
            **os.environ,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it looks for prices when it starts
            **(variant.environment or {}),
        }
        self._waiting: dict[int, Future[Reply]] = {}
        self._lock = threading.Lock()
        self._sent = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [python_of_litellm(), str(_WORKER)],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        self._say(self._config)
        self._hear()  # it is ready
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    def send(self, messages: Sequence[Message]) -> Reply:
        """Send one chat; several threads may at once.

        Raises:
            RuntimeError: The request failed, or LiteLLM's process ended.
        """
        future: Future[Reply] = Future()
        with self._lock:
            self._sent += 1
            self._waiting[self._sent] = future
            self._say({"id": self._sent, "messages": list(messages)})
        return future.result(timeout=300)

    def _say(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - told to Popen
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - told to Popen
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("LiteLLM's process ended")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def _listen(self) -> None:
        try:
            while True:
                heard = self._hear()
                future = self._waiting.pop(heard["id"])
                if "reply" in heard:
                    future.set_result(Reply(**heard["reply"]))
                else:
                    future.set_exception(RuntimeError(heard["error"]))
        except (RuntimeError, OSError, ValueError) as error:
            for future in self._waiting.values():
                future.set_exception(error)


def run_litellm(
    replicas: Replicas[Replica], variant: Variant, spec: WorkloadSpec
) -> WorkloadResult:
    """Send the workload through a new Router; the caches are empty before."""
    replicas.clear()
    endpoints = {f"replica-{i}": url for i, url in enumerate(replicas.urls)}
    with LiteLLM(endpoints, variant, spec.seed) as litellm:
        return run_workload(litellm.send, spec, block_tokens=replicas.block_tokens)


def litellm_version() -> str:
    """Return the version that is measured."""
    code = "import importlib.metadata as m; print(m.version('litellm'))"
    said = subprocess.run(
        [python_of_litellm(), "-c", code], capture_output=True, text=True, check=True
    )
    return said.stdout.strip()


def python_of_litellm() -> str:
    """Return the Python of LiteLLM's environment.

    Raises:
        SetupError: It can't be made.
    """
    (entry,) = (entry for entry in ENTRIES if entry.name == "litellm")
    return str(environment("litellm", entry.newest, AS_OF))
