"""Every example runs as its reader would run it, against simulated replicas on sockets."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prefixroute.testing import FakeCluster
from tests.examples.support import EXAMPLES, metadata, run

pytestmark = [pytest.mark.checkout, pytest.mark.timeout(180)]  # a busy machine

TESTS = Path(__file__).parent
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
IN_THE_DEMO_EXTRA = {"httpx", "openai"}


@pytest.mark.parametrize("name", ["anthropic_sdk.py", "async_streaming.py", "plain_httpx.py"])
def test_example_runs(name: str, cluster: FakeCluster) -> None:
    assert run(name, cluster)
    assert cluster.requests


@pytest.mark.parametrize("name", ["quickstart.py", "agent_with_tools.py"])
def test_a_conversation_stays_at_one_endpoint(name: str, cluster: FakeCluster) -> None:
    assert run(name, cluster)
    assert len(cluster.requests) > 1
    assert len({request.replica for request in cluster.requests}) == 1


def test_processes_agree(cluster: FakeCluster) -> None:
    lines = run("evaluation_processes.py", cluster).splitlines()
    assert len(lines) == 3  # one endpoint for each of the three tasks
    assert all(line.endswith(" 16") for line in lines)


def test_a_document_is_found_cached(cluster: FakeCluster) -> None:
    run("one_long_document.py", cluster)
    assert cluster.hit_rate > 0.75  # each of four replicas computes it once, of 24 times


def test_passages_in_one_order_are_found_cached_more_often(cluster: FakeCluster) -> None:
    rates = [float(line.split()[-1]) for line in run("retrieved_passages.py", cluster).splitlines()]
    by_rank, as_in_the_library = rates
    assert as_in_the_library > by_rank + 0.05


def test_simulated_replicas_says_how_to_reach_them() -> None:
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / "simulated_replicas.py")], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("export ENDPOINTS=http://127.0.0.1:")
        finally:
            process.terminate()


def imported(script: Path) -> set[str]:
    """What a script imports, but for the standard library and prefixroute."""
    names = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    roots = {name.partition(".")[0] for name in names}
    return roots - sys.stdlib_module_names - {"prefixroute"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_what_a_script_needs_is_in_its_metadata(script: Path) -> None:
    needed, given = imported(script), metadata(script)
    if given is None:
        assert needed <= IN_THE_DEMO_EXTRA
        return
    dependencies = [re.split(r"[\[<>=]", one)[0] for one in given["dependencies"]]
    assert dependencies[0] == "prefixroute"
    assert (script.parent / given["tool"]["uv"]["sources"]["prefixroute"]["path"]).samefile(
        EXAMPLES.parent
    )
    for module in needed:
        assert any(one.startswith(module.replace("_", "-")) for one in dependencies), module


def test_every_example_is_listed_and_tested() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w.]+)`", readme, re.MULTILINE)) == files
    tests = "".join(path.read_text(encoding="utf-8") for path in TESTS.glob("test_*.py"))
    assert {name for name in files if name.removesuffix(".py") not in tests} == set()
