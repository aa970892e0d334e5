"""Replicas of a real llama.cpp server on this machine, started and stopped by tests.

Each replica is an exact cache of its last K prompts: it has K slots, and a prompt goes to the slot
whose content it extends best, or else replaces the one used longest ago. `python -m
tests.engines.setup` installs what is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.engines import setup
from tests.engines.replica import MODEL_NAME, EngineError, Replica, Replicas

__all__ = ["MODEL_NAME", "EngineError", "LlamaReplica", "LlamaReplicas"]


class LlamaReplica(Replica):
    """One llama-server on a loopback port of its own.

    Args:
        folder: where its log goes.
        slots: how many prompts it remembers, and how many it computes at once.
        slot_tokens: the context of each slot; a longer prompt is answered with 400.
        threads: of computation.
        extra: further options of llama-server.
    """

    def __init__(
        self,
        folder: Path,
        *,
        slots: int = 4,
        slot_tokens: int = 512,
        threads: int = 1,
        extra: Sequence[str] = (),
    ) -> None:
        super().__init__(folder)
        self.slots = slots
        flags = (
            f"--device none -a {MODEL_NAME} --host 127.0.0.1 --port {self.port} --metrics "
            f"--offline --no-ui -c {slots * slot_tokens} -np {slots} -t {threads} "
            "--cache-ram 0 -b 256 -ub 256"
        )
        erasable = ("--slot-save-path", str(folder))  # without it the server refuses to erase
        self._options = (*flags.split(), *erasable, *extra)

    def command(self) -> Sequence[str]:
        """llama-server with its model."""
        install = _installed()
        return (str(install.server), "-m", str(install.model), *self._options)

    def environment(self) -> Mapping[str, str]:
        """Where the server finds its own libraries."""
        return setup.environment(_installed().libraries)

    def clear(self) -> None:
        """Empties the cache. No request may be running."""
        for slot in range(self.slots):
            status, _ = self.ask("POST", f"/slots/{slot}?action=erase")
            if status != 200:
                raise EngineError(f"{self.url} answered {status} to erasing:\n{self.log_tail()}")


class LlamaReplicas(Replicas[LlamaReplica]):
    """Several replicas, up from entering the `with` block until it is left; see Replicas.

    Args:
        count: how many replicas.
        slots, slot_tokens, threads, extra: see LlamaReplica.
        timeout_s: for all of them to load the model.
    """

    def __init__(
        self,
        count: int,
        *,
        slots: int = 4,
        slot_tokens: int = 512,
        threads: int = 1,
        extra: Sequence[str] = (),
        timeout_s: float = 60.0,
    ) -> None:
        def make(folder: Path) -> LlamaReplica:
            return LlamaReplica(
                folder, slots=slots, slot_tokens=slot_tokens, threads=threads, extra=extra
            )

        super().__init__(count, make, timeout_s=timeout_s)


def _installed() -> setup.Install:
    install = setup.installed()
    if install is None:
        raise EngineError("the engine isn't installed: run `python -m tests.engines.setup`")
    return install
