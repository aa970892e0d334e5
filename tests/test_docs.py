"""The Python blocks of README and docs run as they are, but for what needs a network.

And what docs say of the code is so: defaults, public names, diagrams; figures that a page quotes
are those of the page that measured them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import prefixroute
import prefixroute.signals
from docs_site.diagrams import DIAGRAMS
from docs_site.llms import all_text, entries, index_text
from docs_site.outside import loaded_from_elsewhere
from docs_site.staging import BrokenLinkError, page_of, pages, stage

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
WRITTEN = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in WRITTEN
    if BLOCK.search(path.read_text(encoding="utf-8"))
]
PROJECT = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
PUBLIC = (
    "",
    "configuration",
    "core.events",
    "metrics",
    "plot",
    "signals",
    "simulator",
    "telemetry",
    "testing",
    "tokenizers",
)


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, in one namespace, as a reader would paste them."""
    text = (ROOT / page).read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": page}
    for match in BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 2
        code = compile("\n" * (line - 1) + match[1], str(ROOT / page), "exec")
        exec(code, namespace)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*WRITTEN, ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


# -- what pages say of the code and of each other --------------------------------------------


def rows(table: str) -> Iterator[Sequence[str]]:
    """The cells of each row of a Markdown table, without its head."""
    for line in table.strip().splitlines()[2:]:
        yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def quotes() -> Iterator[tuple[Path, Path, Sequence[str]]]:
    """Each row that a page quotes, with the page that it is said to be of."""
    marked = re.compile(r"^<!-- figures: (\S+) -->\n\n((?:\|.*\n)+)", re.M)
    for path in WRITTEN:
        for source, table in marked.findall(path.read_text(encoding="utf-8")):
            yield from ((path, (path.parent / source).resolve(), row) for row in rows(table))


def is_quoted(row: Sequence[str], source: Sequence[str]) -> bool:
    """Whether all figures of a row are in the source's, in the same order."""
    left = iter(source)
    return all(cell in left for cell in row[1:] if re.search(r"\d", cell))


def test_quoted_figures_are_those_of_their_source() -> None:
    quoted = list(quotes())
    assert len(quoted) > 30
    stale = []
    for path, source, row in quoted:
        lines = [line for line in source.read_text("utf-8").splitlines() if line.startswith("|")]
        measured = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        assert any(re.search(r"\d", cell) for cell in row[1:]), row
        if not any(is_quoted(row, one) for one in measured):
            stale.append(f"{path.name} quotes {row}, which is no row of {source.name} (any more)")
    assert not stale, "\n".join(stale)


def test_figures_that_are_not_measured_are_noticed() -> None:
    assert is_quoted(["any label", "1.49", ""], ["32 routers", "0.70", "1.49", "2"])
    assert not is_quoted(["any label", "1.49", "0.70"], ["32 routers", "0.70", "1.49"])


def settings(page: Path) -> Iterator[tuple[str, str, str]]:
    """Each setting that the page has: class, name, default as written."""
    for name, table in re.findall(
        r"^## `(\w+)`\n\n((?:\|.*\n)+)", page.read_text(encoding="utf-8"), re.M
    ):
        for row in rows(table):
            yield name, row[0].strip("`"), row[1].strip("`")


def test_tuning_has_every_setting_with_its_default() -> None:
    told: dict[str, dict[str, str]] = {}
    for owner, name, default in settings(DOCS / "tuning.md"):
        told.setdefault(owner, {})[name] = default
    assert len(told) > 8
    for owner, defaults in told.items():
        of = getattr(prefixroute, owner, None) or getattr(prefixroute.signals, owner)
        parameters = inspect.signature(of).parameters.values()
        real = {one.name: one.default for one in parameters if one.default is not one.empty}
        assert defaults.keys() == real.keys(), owner
        for name, default in defaults.items():
            if callable(real[name]) and not default.startswith("{"):  # a clock
                assert default == f"time.{real[name].__name__}"
            elif default != "{}":  # made anew for each: dataclasses hide it
                assert ast.literal_eval(default) == real[name], f"{owner}({name}=)"


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    shown = {
        name
        for path in (DOCS / "reference").glob("*.md")
        for name in re.findall(r"^::: (\S+)", path.read_text(encoding="utf-8"), re.M)
    }
    name = ".".join(["prefixroute", module]).rstrip(".")
    public = importlib.import_module(name).__all__
    missing = {one for one in public if not {f"{name}.{one}", f"prefixroute.{one}"} & shown}
    assert not missing, f"name them on a page of docs/reference: {name}.{missing}"


def test_what_the_reference_names_is_there() -> None:
    for path in (DOCS / "reference").glob("*.md"):
        for name in re.findall(r"^::: (\S+)", path.read_text(encoding="utf-8"), re.M):
            module, _, attribute = name.rpartition(".")
            if name not in ("prefixroute.errors", "prefixroute.testing"):
                assert hasattr(importlib.import_module(module), attribute), f"{path.name}: {name}"
        for member in re.findall(r"^        - (\w+)$", path.read_text(encoding="utf-8"), re.M):
            assert hasattr(prefixroute.Router, member), f"{path.name}: Router.{member}"


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_is_what_the_code_draws_now(name: str) -> None:
    kept = (DOCS / name).read_text(encoding="utf-8")
    assert kept == DIAGRAMS[name](), "draw it again: python -m docs_site.diagrams"
    assert ET.fromstring(kept).tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme:dark" in kept
    assert any(f"]({name})" in path.read_text(encoding="utf-8") for path in WRITTEN)


# -- the site ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def staged() -> dict[str, str]:
    return dict(pages())


def test_every_page_is_in_the_navigation(staged: dict[str, str]) -> None:
    listed = [page for _, _, page in entries(PROJECT["nav"])]
    assert sorted(listed) == sorted(staged)


def test_an_index_for_programs_has_every_page_with_what_it_says(staged: dict[str, str]) -> None:
    text = index_text("prefixroute", PROJECT["site_description"], PROJECT["nav"], staged)
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(lines) == len(staged)
    for line in lines:
        said = re.fullmatch(r"- \[[^]]+\]\(\S+\): (.+)", line)
        assert said is not None, line
        assert not re.search(r"[|<`]{2}|\]\(|:::", said[1]), line
    assert "## The chain" in all_text(PROJECT["nav"], staged)


def test_pages_and_pictures_are_staged(tmp_path: Path) -> None:
    stage(tmp_path)
    for name in ("placement.md", "reference/router.md", "ring.svg", "simulator.png", "extra.css"):
        assert (tmp_path / name).exists()
    for page in tmp_path.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_a_link_out_of_the_site_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "page.md").write_text("[the gate](../.ci/run)", encoding="utf-8")
    monkeypatch.setattr("docs_site.staging.DOCS", docs)
    monkeypatch.setattr("docs_site.staging.ROOT", tmp_path)
    with pytest.raises(BrokenLinkError, match=r"docs/page.md links to \.\./\.ci/run"):
        list(pages())


def test_what_lies_beside_docs_has_its_page() -> None:
    assert page_of(ROOT / "SECURITY.md") == "security-policy.md"
    assert page_of(ROOT / "examples" / "kubernetes") == "examples.md"
    assert page_of(ROOT / "prefixroute" / "testing" / "__init__.py") == "reference/testing.md"
    assert page_of(ROOT / "prefixroute" / "no_such_file.py") is None


def test_what_a_page_would_load_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "own.html").write_text(
        '<link rel="canonical" href="https://a.test"><a href="https://a.test">a</a><img src="a">'
    )
    assert not list(loaded_from_elsewhere(tmp_path))
    (tmp_path / "page.html").write_text(
        '<link rel="preconnect" href="https://fonts.test"><script src="//cdn.test/a.js"></script>'
        "<style>@import url(https://fonts.test/css)</style>"
    )
    (tmp_path / "style.css").write_text("body{background:url('https://a.test/b.png')}")
    found = [address for _, address in loaded_from_elsewhere(tmp_path)]
    assert sorted(found) == [
        "//cdn.test/a.js",
        "https://a.test/b.png",
        "https://fonts.test",
        "https://fonts.test/css",
    ]
