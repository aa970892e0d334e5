"""The pytest plugin: its fixture, and that it costs nothing where it is not used."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import prefixroute_pytest

UNUSED = """
import sys

def test_nothing_is_loaded():
    heavy = {"prefixroute", "httpx", "httpx2", "anyio", "msgspec", "mmh3"}
    assert not heavy & sys.modules.keys()
"""

USED = """
import httpx
import pytest

from prefixroute import Router
from prefixroute.testing import assert_all_finished, assert_same_endpoint, assert_spread


def chat(http, system, turns=1):
    messages = [{"role": "system", "content": system * 50}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{turn}?"})
        response = http.post("/chat/completions", json={"messages": messages, "max_tokens": 2})
        messages.append(response.json()["choices"][0]["message"])
        yield response


def test_chats_stay(prefixroute_cluster):
    cluster = prefixroute_cluster(3)
    router = Router(cluster.urls)
    transport = router.transport(cluster.transport())
    with httpx.Client(base_url=router.base_url, transport=transport) as http:
        assert_same_endpoint(chat(http, "library ", turns=5))
        assert_spread([one for n in range(30) for one in chat(http, f"{n} is ")], endpoints=3)
    assert_all_finished(cluster)


urls = []


def test_sockets_are_served(prefixroute_cluster):
    cluster, served = prefixroute_cluster.serve(2)
    urls.extend(served)
    for url in served:
        assert httpx.get(url + "/models", trust_env=False).status_code == 200
    assert len(cluster.requests) == 2


def test_and_closed_with_the_test():
    with pytest.raises(httpx.ConnectError):
        httpx.get(urls[0] + "/models", trust_env=False)
"""


def run_pytest(folder: Path, text: str, *arguments: str) -> str:
    """What pytest says of a test file, in a process that loads this plugin and no other."""
    (folder / "test_it.py").write_text(text)
    root = str(Path(prefixroute_pytest.__file__).parents[1])
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "prefixroute_pytest", "-q", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_is_loaded_where_it_is_not_used(tmp_path: Path) -> None:
    assert "1 passed" in run_pytest(tmp_path, UNUSED)


def test_a_test_of_an_application_uses_it(tmp_path: Path) -> None:
    assert "3 passed" in run_pytest(tmp_path, USED, "-W", "error")


def test_its_fixture_is_listed_with_what_it_does(tmp_path: Path) -> None:
    listed = run_pytest(tmp_path, UNUSED, "--fixtures")
    assert "prefixroute_cluster" in listed
    assert "Make simulated engines" in listed


@pytest.mark.checkout
def test_pytest_finds_it() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)
    assert project["project"]["entry-points"]["pytest11"] == {"prefixroute": "prefixroute_pytest"}
    assert "prefixroute_pytest" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
