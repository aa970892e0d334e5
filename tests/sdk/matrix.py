"""Which SDKs are tested, from which version on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["AS_OF", "ENTRIES", "Entry"]

AS_OF: Final = "2026-11-29"
"""The newest versions are those of this day, so that a green run stays green; ``--latest`` takes
today's. Move it on now and then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An SDK at both ends of what is supported.

    Attributes:
        name: What ``--only`` takes.
        scenario: Its module in ``tests.sdk.scenarios``.
        newest: Requirements of its newest version.
        lowest: Requirements of its lowest supported one.
        lowest_as_of: The day as of which these are resolved: what they need was of that time.
    """

    name: str
    scenario: str
    newest: tuple[str, ...]
    lowest: tuple[str, ...]
    lowest_as_of: str


ENTRIES: Final = (
    Entry(
        name="openai-httpx",
        scenario="openai",
        newest=("openai<3",),
        lowest=("openai==1.99.9", "httpx==0.27.0"),
        lowest_as_of="2025-09-01",
    ),
    Entry(
        name="openai",
        scenario="openai",
        newest=("openai",),
        lowest=("openai==3.0.0", "httpx2==2.7.0"),
        lowest_as_of=AS_OF,
    ),
    Entry(
        name="anthropic-httpx",
        scenario="anthropic",
        newest=("anthropic<1",),
        lowest=("anthropic==0.45.0",),
        lowest_as_of="2025-09-01",
    ),
    Entry(
        name="anthropic",
        scenario="anthropic",
        newest=("anthropic",),
        lowest=("anthropic==1.0.0",),
        lowest_as_of=AS_OF,
    ),
    Entry(
        name="langchain-openai",
        scenario="langchain_openai",
        newest=("langchain-openai",),
        lowest=("langchain-openai==0.3.12",),
        lowest_as_of="2025-09-01",
    ),
    Entry(
        name="pydantic-ai",
        scenario="pydantic_ai",
        newest=("pydantic-ai-slim[openai]",),
        lowest=("pydantic-ai-slim[openai]==1.0.0",),
        lowest_as_of="2025-11-01",
    ),
    Entry(
        name="openai-agents",
        scenario="openai_agents",
        newest=("openai-agents",),
        lowest=("openai-agents==0.3.0",),
        lowest_as_of="2025-11-01",
    ),
    Entry(
        name="mistralai",
        scenario="mistralai",
        newest=("mistralai",),
        lowest=("mistralai==1.5.0",),
        lowest_as_of="2025-09-01",
    ),
    Entry(
        name="litellm",
        scenario="litellm",
        newest=("litellm",),
        lowest=("litellm==1.75.0",),
        lowest_as_of="2025-09-01",
    ),
    Entry(
        name="llama-index",
        scenario="llama_index",
        newest=("llama-index-llms-openai-like",),
        lowest=("llama-index-llms-openai-like==0.4.0",),
        lowest_as_of="2025-09-01",
    ),
    Entry(
        name="instructor",
        scenario="instructor",
        newest=("instructor",),
        lowest=("instructor==1.10.0",),
        lowest_as_of="2025-11-01",
    ),
    Entry(
        name="haystack",
        scenario="haystack",
        newest=("haystack-ai",),
        lowest=("haystack-ai==2.13.0",),
        lowest_as_of="2025-09-01",
    ),
    Entry(
        name="dspy",
        scenario="dspy",
        newest=("dspy",),
        lowest=("dspy==3.0.0",),
        lowest_as_of="2025-11-01",
    ),
    Entry(
        name="respx",
        scenario="respx",
        newest=("respx", "pytest", "openai<3"),
        lowest=("respx==0.22.0", "pytest", "openai<3"),
        lowest_as_of="2025-11-01",
    ),
    Entry(
        name="pytest-httpx",
        scenario="pytest_httpx",
        newest=("pytest-httpx", "openai<3"),
        lowest=("pytest-httpx==0.35.0", "openai<3"),
        lowest_as_of="2025-11-01",
    ),
    Entry(
        name="pytest-httpx2",
        scenario="pytest_httpx2",
        newest=("pytest-httpx2", "pytest", "httpx2", "openai"),
        lowest=("pytest-httpx2==1.0.0", "pytest", "httpx2==2.7.0", "openai==3.0.0"),
        lowest_as_of=AS_OF,
    ),
    Entry(
        name="httpx2-pytest",
        scenario="httpx2_pytest",
        newest=("httpx2-pytest", "openai"),
        lowest=("httpx2-pytest==2.0.0", "openai==3.0.0"),
        lowest_as_of=AS_OF,
    ),
)
