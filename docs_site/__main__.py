"""``python -m docs_site``: builds the site, warnings as errors, into build/site."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from docs_site.llms import all_text, index_text
from docs_site.outside import loaded_from_elsewhere
from docs_site.staging import ROOT, BrokenLinkError, stage


def main() -> int:
    """Build; return the exit status."""
    project: dict[str, Any] = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    docs, site = ROOT / project["docs_dir"], ROOT / project["site_dir"]
    try:
        stage(docs)
    except BrokenLinkError as error:
        print(error, file=sys.stderr)
        return 1
    build = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if status := subprocess.run(build, cwd=ROOT, check=False).returncode:  # noqa: S603 - as above
        return status
    _add_text(project, docs, site)
    elsewhere = list(loaded_from_elsewhere(site))
    for path, address in elsewhere:
        print(f"{path.relative_to(site)} would load {address}", file=sys.stderr)
    return int(bool(elsewhere))


def _add_text(project: dict[str, Any], docs: Path, site: Path) -> None:
    """Put the pages' text beside their HTML, with an index, for programs that read."""
    nav = project["nav"]
    texts = {path.relative_to(docs).as_posix(): path for path in docs.rglob("*.md")}
    pages = {name: path.read_text(encoding="utf-8") for name, path in texts.items()}
    for name, text in pages.items():
        (site / name).write_text(text, encoding="utf-8")
    index = index_text(project["site_name"], project["site_description"], nav, pages)
    (site / "llms.txt").write_text(index, encoding="utf-8")
    (site / "llms-full.txt").write_text(all_text(nav, pages), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
