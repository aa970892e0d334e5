from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from prefixroute import Router
from prefixroute.cli.app import app


def config(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["config", *map(str, arguments)])


def test_a_file_that_works_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "prefixroute.toml"
    path.write_text('endpoints = ["http://user:pw-4711@gpu-0:8000", "http://gpu-1:8000"]\n')
    result = config("check", path)
    assert result.exit_code == 0, result.output
    fingerprint = Router(["http://gpu-0:8000", "http://gpu-1:8000"]).fingerprint
    assert f"2 endpoints, Nested, fingerprint {fingerprint}" in result.stdout
    assert "pw-4711" not in result.output
    got = json.loads(config("check", path, "--json").stdout)
    assert got == {
        "file": str(path),
        "ok": True,
        "endpoints": [
            {"id": f"http://gpu-{n}:8000/v1", "url": f"http://gpu-{n}:8000/v1"} for n in (0, 1)
        ],
        "placement": "Nested",
        "fingerprint": fingerprint,
    }


def test_a_file_that_cannot_work_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prefixroute.toml"
    path.write_text('endpoints = ["http://gpu-0:8000"]\n[health]\nfailure = 3\n')
    result = config("check", path)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{path}: health has no key 'failure'; did you mean 'failures'")
    got = json.loads(config("check", path, "--json").stdout)
    assert (got["ok"], got["error"]) == (False, result.stderr.strip())


def test_variables_need_not_be_set_where_it_is_only_checked(tmp_path: Path) -> None:
    path = tmp_path / "prefixroute.toml"
    path.write_text('[[endpoints]]\nurl = "http://gpu-0:8000"\napi_key_env = "NOT_SET_4711"\n')
    assert config("check", path).exit_code == 1
    assert config("check", path, "--no-env").exit_code == 0


def test_the_schema_is_json() -> None:
    result = config("schema")
    assert result.exit_code == 0
    assert "endpoints" in json.loads(result.stdout)["$defs"]["Prefixroute"]["properties"]
