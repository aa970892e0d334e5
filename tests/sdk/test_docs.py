"""docs/sdks.md names every SDK of the matrix, from the version that is tested."""

from __future__ import annotations

import pytest

from tests.sdk.environments import ROOT
from tests.sdk.matrix import ENTRIES, Entry

pytestmark = pytest.mark.checkout


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_docs_say_from_which_version(entry: Entry) -> None:
    text = (ROOT / "docs" / "sdks.md").read_text(encoding="utf-8")
    sdk, _, version = entry.lowest[0].partition("==")
    name = sdk.partition("[")[0].removesuffix("-slim")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert any(f"{name} " in line and version in line for line in lines), f"{name} {version}"
