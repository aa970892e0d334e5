"""The real engines that are measured, their workloads, and on what they were measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.measuring import machine, packages
from tests.engines import setup, vllm_setup
from tests.engines.llama import LlamaReplicas
from tests.engines.replica import Replica, Replicas
from tests.engines.vllm import VllmReplicas
from tests.engines.workload import FULL, REPLICAS, SLOTS, WorkloadSpec
from tests.tokenizers.smollm import tokenizer_folder

__all__ = ["FLEETS", "Fleet", "machine", "packages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas of one engine and what is sent to them.

    Attributes:
        replicas: Makes them; they run inside a ``with`` block.
        count: How many there are.
        spec: The chats.
        block_tokens: What counts as one block when errors are judged. vLLM's own; llama.cpp's
            cache is exact to the token, and 16 is what engines with blocks take at the least.
        tokenizer: Returns the folder of the model's tokenizer and chat template.
        versions: Returns the versions of the engine and the model.
    """

    replicas: Callable[[], Replicas[Replica]]
    count: int
    spec: WorkloadSpec
    block_tokens: int
    tokenizer: Callable[[], Path]
    versions: Callable[[], Mapping[str, str]]


def _llama_versions() -> Mapping[str, str]:
    return {"llama.cpp": setup.SERVER, "kernels": setup.SOURCE, "model": f"{setup.MODEL}, Q4_0"}


def _vllm_versions() -> Mapping[str, str]:
    return {**vllm_setup.versions(), "model": f"{setup.MODEL}, float32"}


def _checkpoint() -> Path:
    return vllm_setup.install(lambda line: print(line, file=sys.stderr)).checkpoint


FLEETS: Final[Mapping[str, Fleet]] = {
    "llama": Fleet(
        replicas=lambda: LlamaReplicas(REPLICAS, slots=SLOTS),
        count=REPLICAS,
        spec=FULL,
        block_tokens=16,
        tokenizer=tokenizer_folder,
        versions=_llama_versions,
    ),
    # Blocks for twice the chats of an even placement, as llama.cpp's slots are.
    "vllm": Fleet(
        replicas=lambda: VllmReplicas(3, blocks=96),
        count=3,
        spec=replace(FULL, turns=6),
        block_tokens=VllmReplicas.block_tokens,
        tokenizer=_checkpoint,
        versions=_vllm_versions,
    ),
}
