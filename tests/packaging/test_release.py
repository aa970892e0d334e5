"""The checks of a release notice what is wrong; ``python -m tests.packaging`` runs them."""

from __future__ import annotations

from email.message import Message
from itertools import pairwise

import pytest

from tests.packaging.__main__ import _FOR_DEVELOPERS
from tests.packaging.artifacts import tracked, wrong_in_metadata, wrong_in_sdist, wrong_in_wheel
from tests.packaging.installing import project, requirements
from tests.packaging.uses import USES
from tests.sdk.environments import ROOT

_KNOWN = (
    "prefixroute/__init__.py",
    "prefixroute/py.typed",
    "prefixroute/signals/beat.lua",
    "prefixroute/simulator/page.css",
    "prefixroute_pytest/py.typed",
    "tests/test_plot.py",
    "pyproject.toml",
    ".ci/run",
)
_WHEEL = [
    *(name for name in _KNOWN if name.startswith("prefixroute")),
    "prefixroute-0.1.0.dist-info/METADATA",
    "prefixroute-0.1.0.dist-info/RECORD",
    "prefixroute-0.1.0.dist-info/WHEEL",
    "prefixroute-0.1.0.dist-info/entry_points.txt",
    "prefixroute-0.1.0.dist-info/licenses/LICENSE",
]
_SDIST = [*(name for name in _KNOWN if name != ".ci/run"), "PKG-INFO", ".gitignore"]


def test_a_whole_release_is_right() -> None:
    assert not list(wrong_in_wheel(_WHEEL, _KNOWN))
    assert not list(wrong_in_sdist(_SDIST, _KNOWN))


@pytest.mark.parametrize("name", _WHEEL)
def test_whatever_a_wheel_lacks_is_named(name: str) -> None:
    wrong = list(wrong_in_wheel([one for one in _WHEEL if one != name], _KNOWN))
    assert wrong == [f"the wheel lacks {name.replace('prefixroute-0.1.0.', '')}"]


def test_a_file_that_was_renamed_is_missed_all_the_same() -> None:
    names = [name for name in _WHEEL if not name.endswith("beat.lua")]
    known = [name for name in _KNOWN if not name.endswith("beat.lua")]
    assert list(wrong_in_wheel(names, known)) == ["the wheel lacks prefixroute/signals/beat.lua"]


@pytest.mark.parametrize(
    "name",
    ["tests/test_plot.py", "prefixroute/__pycache__/router.cpython-311.pyc", "prefixroute/new.py"],
)
def test_whatever_a_wheel_should_not_have_is_named(name: str) -> None:
    assert list(wrong_in_wheel([*_WHEEL, name], _KNOWN)) == [f"the wheel should not have {name}"]


def test_what_is_wrong_in_a_source_distribution_is_named() -> None:
    names = [*(name for name in _SDIST if not name.startswith("tests")), ".ci/run"]
    assert list(wrong_in_sdist(names, _KNOWN)) == [
        "the sdist lacks tests/test_plot.py",
        "the sdist should not have .ci/run",
    ]


def _metadata(**changed: str) -> str:
    """The metadata that the project's settings make, some fields changed."""
    settings, message = project(), Message()
    fields = [
        ("Name", settings["name"]),
        ("Version", settings["version"]),
        ("Requires-Python", settings["requires-python"]),
        ("License-Expression", settings["license"]),
        *(("Provides-Extra", extra) for extra in settings["optional-dependencies"]),
        *(("Requires-Dist", needed) for needed in settings["dependencies"]),
        ("Requires-Dist", "redis>=5.0; extra == 'redis'"),
    ]
    for name, value in fields:
        message[name] = changed.get(name.replace("-", "_").lower(), value)
    message.set_payload((ROOT / settings["readme"]).read_text("utf-8"))
    return message.as_string()


_ENTRY_POINTS = (
    "[console_scripts]\nprefixroute = prefixroute.cli:main\n\n"
    "[pytest11]\nprefixroute = prefixroute_pytest\n"
)


@pytest.mark.checkout
def test_metadata_must_say_what_the_settings_say() -> None:
    assert not list(wrong_in_metadata(_metadata(), _ENTRY_POINTS, project()))
    (wrong,) = wrong_in_metadata(_metadata(requires_python=">=3.8"), _ENTRY_POINTS, project())
    assert "Requires-Python is '>=3.8'" in wrong
    (wrong,) = wrong_in_metadata(_metadata(), _ENTRY_POINTS.replace("cli:", "cli.app:"), project())
    assert "entry_points.txt" in wrong


def test_an_extra_of_extras_is_resolved() -> None:
    extras = {"a": ["x>=1"], "b": ["prefixroute[a]", "y"], "all": ["prefixroute[a,b]"]}
    assert list(requirements("all", extras)) == ["x>=1", "x>=1", "y"]
    assert not list(requirements("base", extras))


@pytest.mark.checkout
def test_every_extra_of_users_is_used() -> None:
    extras = set(project()["optional-dependencies"]) - _FOR_DEVELOPERS
    assert set(USES) == extras | {"base", "trio"}
    whole = set(requirements("all", project()["optional-dependencies"]))
    for extra in extras:
        assert whole.issuperset(requirements(extra, project()["optional-dependencies"])), extra


@pytest.mark.checkout
def test_the_checkout_is_known() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    known = tracked()
    assert "prefixroute/py.typed" in known
    assert not any("__pycache__" in name for name in known)


@pytest.mark.checkout
def test_the_changelog_has_its_headings_in_order() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    versions = [line for line in text.splitlines() if line.startswith("## ")]
    assert versions[0] == "## [Unreleased]"
    first = text.partition("## [Unreleased]")[2].partition("\n## ")[0]
    headings = [line[4:] for line in first.splitlines() if line.startswith("### ")]
    order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Placement changes"]
    places = [order.index(heading) for heading in headings]
    assert all(one < other for one, other in pairwise(places)), headings
