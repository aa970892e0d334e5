from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from prefixroute.cli.app import app
from prefixroute.simulator import policy_names

FAST = ("--rate", "10", "--duration", "5", "--replicas", "3", "--jobs", "1")


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments], env={"COLUMNS": "200"})


def found(*arguments: str) -> Any:
    result = simulate(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def log(path: Path, *rows: object) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def blocks(at_ms: int, *ids: int) -> dict[str, object]:
    return {
        "timestamp": at_ms, "input_length": 512 * len(ids), "output_length": 3, "hash_ids": ids,
    }  # fmt: skip


def test_all_rules_and_numbers_of_routers_are_in_the_table() -> None:
    result = simulate("chats", *FAST)
    assert result.exit_code == 0, result.output
    for name in policy_names():
        assert result.stdout.count(f"\n{name} ") == 2
    assert "Bound: what one cache as large as all finds" in result.stdout
    assert "moved" not in result.stdout


@pytest.mark.parametrize("name", ["agents", "chats", "popular-prefixes", "system-prompts"])
def test_traces_are_made(name: str) -> None:
    rate = "1" if name == "agents" else "20"
    got = found(
        name, "--rate", rate, "--duration", "5", "--policy", "random", "--routers", "2",
        "--block-tokens", "64", "--jobs", "1",
    )  # fmt: skip
    assert got["requests"] > 20
    assert got["block_tokens"] == 64
    assert [(r["policy"], r["routers"]) for r in got["results"]] == [("random", 2)]


def test_options_reach_the_simulation(tmp_path: Path) -> None:
    file = log(tmp_path / "t.jsonl", *(blocks(n * 500, n, n + 1) for n in range(20)))
    got = found(
        file, "--replicas", "2", "--routers", "1", "--policy", "nested", "--policy", "random",
        "--cache-blocks", "7", "--prefill-tokens-per-s", "4000", "--request-cost-ms", "5",
        "--token-ms", "8", "--chunk-tokens", "256", "--decode-slowdown", "0.1", "--max-running",
        "9", "--report-every", "2", "--cache-report", "start", "--no-stream", "--replace-after",
        "6", "--speed", "2", "--seed", "4", "--slots", "3", "--jobs", "1",
    )  # fmt: skip
    model = {
        "cache_blocks": 7, "prefill_tokens_per_s": 4000.0, "fixed_s": 0.005, "decode_s": 0.008,
        "chunk_tokens": 256, "decode_slowdown": 0.1, "max_running": 9, "slots": 3,
    }  # fmt: skip
    assert got["models"] == [model, model]
    assert got["setting"] == {
        "replace_after": 6, "report_every_s": 2.0, "cache_report": "start", "stream": False,
    }  # fmt: skip
    assert got["duration_s"] == pytest.approx(19 * 0.5 / 2)
    assert got["seed"] == 4
    assert [row["policy"] for row in got["results"]] == ["nested", "random"]


def test_changes_of_the_membership_show_which_keys_moved() -> None:
    changes = ("--leave", "2:1", "--join", "4:1", "--policy", "nested", "--policy", "random")
    got = found("chats", *FAST, *changes, "--routers", "1")
    assert [(c["at_s"], c["joins"]) for c in got["changes"]] == [(2.0, False), (4.0, True)]
    moved = {row["policy"]: row["keys_moved"] for row in got["results"]}
    assert moved["random"] is None
    assert moved["nested"] > 0.0
    assert "moved" in simulate("chats", *FAST, *changes).stdout


def test_a_table_fits_a_terminal_of_80_columns() -> None:
    arguments = ("simulate", "chats", *FAST, "--leave", "2:1")
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= 80
    assert "…" not in result.stdout


def test_a_page_is_written_beside_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["prefixroute", "simulate", "a trace"])
    file = tmp_path / "report.html"
    result = simulate("chats", *FAST, "--policy", "nested", "--html", str(file))
    assert result.exit_code == 0, result.output
    page = file.read_text("utf-8")
    assert "<pre>prefixroute simulate &#x27;a trace&#x27;</pre>" in page
    assert page.count("<svg") == 4


def test_several_processes_give_the_same() -> None:
    arguments = ("chats", *FAST[:-2], "--policy", "nested", "--policy", "prefix-tree")
    one, two = found(*arguments, "--jobs", "1"), found(*arguments, "--jobs", "2")
    for row in (*one["results"], *two["results"]):
        del row["decisions_per_s"]  # measured
    assert one["results"] == two["results"]


def test_progress_is_not_shown_where_nobody_looks() -> None:
    result = simulate("chats", *FAST, "--policy", "random")
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing.jsonl",), "must be a file or one of: agents, chats"),
        (("chats", "--routers", "1;2"), "such as 1,32"),
        (("chats", "--routers", "0"), "routers=0"),
        (("chats", "--cache-report", "middle"), "must be one of: start, end, never"),
        (("chats", "--policy", "best"), "there are: nested, fixed"),
        (("chats", "--leave", "soon"), "must be SECOND:REPLICA"),
        (("chats", "--join", "-1:2"), "must be SECOND:REPLICA"),
        (("chats", "--speed", "0"), "speed"),
        (("chats", "--prefill-tokens-per-s", "0"), "prefill_tokens_per_s"),
        (("chats", "--html", "/nowhere/at/all.html"), "folder that exists"),
        (("chats", "--rate", "0"), "above 0"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(arguments: tuple[str, ...], said: str) -> None:
    result = simulate(*arguments, "--jobs", "1")
    assert result.exit_code == 2
    assert said in _unboxed(result.stderr)


def test_a_broken_file_names_the_line_and_why(tmp_path: Path) -> None:
    file = log(tmp_path / "t.jsonl", blocks(0, 1), {"timestamp": 1, "hash_ids": [1]})
    result = simulate(file)
    assert result.exit_code == 2
    assert "line 2: Object missing required field" in _unboxed(result.stderr)


def test_a_rate_does_not_fit_a_file(tmp_path: Path) -> None:
    result = simulate(log(tmp_path / "t.jsonl", blocks(0, 1)), "--rate", "3")
    assert result.exit_code == 2
    assert "--rate=3 is for generated traces" in _unboxed(result.stderr)


def _unboxed(text: str) -> str:
    """An error without the box around it, whose lines may be broken anywhere."""
    return " ".join(text.replace("│", " ").split())
