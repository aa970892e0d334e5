"""Tests on engines find them installed: the first run fetches and builds them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import setup
from tests.engines.llama import LlamaReplicas
from tests.tokenizers.smollm import tokenizer_folder


@pytest.fixture(scope="session")
def smollm() -> Path:
    """The folder of the engines' model's tokenizer."""
    setup.install()
    return tokenizer_folder()


@pytest.fixture(scope="module")
def replicas() -> Iterator[LlamaReplicas]:
    """Two real replicas."""
    setup.install()
    with LlamaReplicas(2, slots=6, slot_tokens=1024) as running:
        yield running
