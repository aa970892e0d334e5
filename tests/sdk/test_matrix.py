"""The matrix, for the SDKs that this environment has: `python -m tests.sdk` runs all of it."""

from __future__ import annotations

import os

import pytest

from tests.sdk.__main__ import main


@pytest.mark.skipif(
    not ({"CI", "PREFIXROUTE_SDK"} & os.environ.keys()),
    reason="takes seconds: set PREFIXROUTE_SDK=1, or run python -m tests.sdk",
)
def test_sdks_of_this_environment(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--here", "--only", "openai,anthropic"])
    assert status == 0, capsys.readouterr().out
