"""Replicas of a real vLLM on CPUs, started and stopped by tests that are run on demand.

They take a minute or more to start and 3 GB each. `python -m tests.engines.vllm_setup` installs
what is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.engines import vllm_setup
from tests.engines.replica import MODEL_NAME, EngineError, Replica, Replicas

BLOCK_TOKENS = 32
"""The length of a block of the KV cache; only whole blocks are found again."""


class VllmReplica(Replica):
    """One vLLM on a loopback port of its own.

    Args:
        folder: where its log goes.
        blocks: the size of the KV cache, in blocks of BLOCK_TOKENS, of which one is never used.
        reports: whether replies say how many tokens were found cached.
        extra: further options of `vllm serve`.
    """

    def __init__(
        self, folder: Path, *, blocks: int = 64, reports: bool = True, extra: Sequence[str] = ()
    ) -> None:
        super().__init__(folder)
        flags = (
            f"--served-model-name {MODEL_NAME} --host 127.0.0.1 --port {self.port} "
            "--dtype float32 --max-model-len 1024 --max-num-seqs 8 --enforce-eager "
            f"--enable-prefix-caching --block-size {BLOCK_TOKENS} "
            f"--num-gpu-blocks-override {blocks}"
        )
        details = ("--enable-prompt-tokens-details",) if reports else ()
        self._options = (*flags.split(), *details, *extra)

    def command(self) -> Sequence[str]:
        """`vllm serve` with its checkpoint."""
        install = vllm_setup.installed()
        if install is None:
            raise EngineError("vLLM isn't installed: run `python -m tests.engines.vllm_setup`")
        cli = (str(install.python), "-m", "vllm.entrypoints.cli.main")
        return (*cli, "serve", str(install.checkpoint), *self._options)

    def environment(self) -> Mapping[str, str]:
        """Offline, with one thread of computation and the endpoint that empties the cache."""
        return {**vllm_setup.offline(), "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1"}

    def clear(self) -> None:
        """Empties the cache. No request may be running."""
        status, body = self.ask("POST", "/reset_prefix_cache")
        if status != 200 or not json.loads(body)["success"]:
            raise EngineError(f"{self.url} didn't empty its cache:\n{self.log_tail()}")


class VllmReplicas(Replicas[VllmReplica]):
    """Several replicas, up from entering the `with` block until it is left; see Replicas.

    Args:
        count: how many replicas.
        blocks, reports, extra: see VllmReplica.
        timeout_s: for all of them to load the model.
    """

    block_tokens = BLOCK_TOKENS

    def __init__(
        self,
        count: int,
        *,
        blocks: int = 64,
        reports: bool = True,
        extra: Sequence[str] = (),
        timeout_s: float = 600.0,
    ) -> None:
        def make(folder: Path) -> VllmReplica:
            return VllmReplica(folder, blocks=blocks, reports=reports, extra=extra)

        super().__init__(count, make, timeout_s=timeout_s)
