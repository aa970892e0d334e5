from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
import zstandard
from typer.testing import CliRunner

from prefixroute.cli.app import app
from prefixroute.errors import ConfigurationError
from prefixroute.simulator import TraceError, analyze, read_requests, read_trace
from prefixroute.simulator.analysis import Reason

from .logs import asked, chat, prose, rows, written


def applications(rng: Random, *, count: int, requests: int, words: int) -> list[dict[str, object]]:
    rules = [prose(rng, words) for _ in range(count)]
    return [chat(rng, rng.choice(rules)) for _ in range(requests)]


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["analyze", *map(str, arguments)], env={"COLUMNS": "200"})
    return result.exit_code, result.output


# -- the verdict -----------------------------------------------------------------------------------


def test_many_prompts_and_small_caches_are_worth_it(tmp_path: Path) -> None:
    rng = Random(0)
    bodies = applications(rng, count=40, requests=400, words=1200)
    analysis = analyze(written(tmp_path / "log.jsonl", rows(bodies)), cache_tokens=25_000)
    assert analysis.verdict.worth_it is True
    assert analysis.verdict.reason is Reason.GAIN
    assert analysis.routed.hit_rate > analysis.random.hit_rate + 0.2
    assert analysis.routed.ttft_mean_s < analysis.random.ttft_mean_s
    assert analysis.routed.hit_rate <= analysis.pooled_hit_rate + 0.01
    assert analysis.pooled_hit_rate <= analysis.repeated_share
    assert analysis.repeated_share == pytest.approx(0.9, abs=0.05)
    assert analysis.repeated_system_share == 1.0


def test_unrelated_prompts_are_told(tmp_path: Path) -> None:
    rng = Random(1)
    bodies: list[object] = [{"prompt": prose(rng, 400)} for _ in range(60)]
    verdict = analyze(written(tmp_path / "log.jsonl", bodies)).verdict
    assert (verdict.worth_it, verdict.reason) == (False, Reason.UNRELATED)
    assert "will not help" in verdict.text


def test_a_timestamp_is_the_reason(tmp_path: Path) -> None:
    rng = Random(2)
    rules, start = prose(rng, 400), datetime(2025, 1, 1, tzinfo=UTC)
    bodies = [chat(rng, f"{start + timedelta(seconds=at)} {rules}") for at in range(60)]
    verdict = analyze(written(tmp_path / "log.jsonl", rows(bodies))).verdict
    assert (verdict.worth_it, verdict.reason) == (False, Reason.SPOILED)
    assert "a timestamp in messages[0].content" in verdict.text


def test_one_replica(tmp_path: Path) -> None:
    bodies = applications(Random(3), count=5, requests=60, words=200)
    verdict = analyze(written(tmp_path / "log.jsonl", rows(bodies)), replicas=1).verdict
    assert (verdict.worth_it, verdict.reason) == (False, Reason.ONE_REPLICA)


def test_a_cache_that_holds_everything(tmp_path: Path) -> None:
    bodies = applications(Random(4), count=2, requests=500, words=200)
    verdict = analyze(written(tmp_path / "log.jsonl", rows(bodies))).verdict
    assert (verdict.worth_it, verdict.reason) == (False, Reason.CACHE_HOLDS_ALL)


def test_short_prompts(tmp_path: Path) -> None:
    bodies = applications(Random(5), count=60, requests=300, words=18)
    verdict = analyze(written(tmp_path / "log.jsonl", rows(bodies))).verdict
    assert (verdict.worth_it, verdict.reason) == (False, Reason.SHORT)


def test_long_outputs(tmp_path: Path) -> None:
    bodies = applications(Random(6), count=40, requests=300, words=300)
    lines = [{"time": at / 3, "body": b, "output_tokens": 4000} for at, b in enumerate(bodies)]
    verdict = analyze(written(tmp_path / "log.jsonl", lines)).verdict
    assert (verdict.worth_it, verdict.reason) == (False, Reason.LONG_OUTPUTS)


def test_few_requests_tell_nothing(tmp_path: Path) -> None:
    bodies = applications(Random(7), count=2, requests=5, words=200)
    verdict = analyze(written(tmp_path / "log.jsonl", rows(bodies))).verdict
    assert (verdict.worth_it, verdict.reason) == (None, Reason.TOO_FEW)


# -- the figures -----------------------------------------------------------------------------------


def test_top_prefixes_are_those_that_save_most(tmp_path: Path) -> None:
    rng = Random(8)
    often, seldom = prose(rng, 800), prose(rng, 200)
    bodies = [chat(rng, often if at % 4 else seldom) for at in range(80)]
    first, second = analyze(written(tmp_path / "log.jsonl", rows(bodies))).prefixes
    assert (first.requests, second.requests) == (60, 20)
    assert first.tokens == pytest.approx(len(often) / 4, rel=0.05)
    assert first.label == "end of tools and system prompt"
    assert first.request_share == 0.75


def test_depths_add_up(tmp_path: Path) -> None:
    bodies = applications(Random(9), count=3, requests=60, words=500)
    depths = analyze(written(tmp_path / "log.jsonl", rows(bodies))).depths
    assert sum(share for _, share in depths.shares) == pytest.approx(1.0)
    assert dict(depths.shares)[0] == pytest.approx(3 / 60)
    assert depths.p10 <= depths.p50 <= depths.p90
    assert dict(depths.shares)[512] == pytest.approx(57 / 60)


def test_a_trace_of_blocks_has_no_text_to_search(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 100 * at, "input_length": 1024, "output_length": 9, "hash_ids": [at % 5, 9]}
        for at in range(100)
    ]
    analysis = analyze(written(tmp_path / "trace.jsonl", lines))
    assert analysis.search is None
    assert analysis.counted
    assert analysis.repeated_share == pytest.approx(0.95)
    assert analysis.output_tokens_mean == 9
    assert analysis.pooled_hit_rate == pytest.approx(0.95, abs=0.01)


def test_without_times_the_rate_is_even_and_moderate(tmp_path: Path) -> None:
    bodies = applications(Random(10), count=3, requests=50, words=300)
    analysis = analyze(written(tmp_path / "log.jsonl", bodies))
    assert not analysis.timed
    assert analysis.load == pytest.approx(0.6)
    timed = analyze(written(tmp_path / "log.jsonl", rows(bodies, every_s=2.0)))
    assert timed.timed
    assert timed.duration_s == pytest.approx(98.0)
    same = analyze(written(tmp_path / "log.jsonl", rows(bodies, every_s=0.0)))
    assert not same.timed


def test_the_same_log_gives_the_same_analysis(tmp_path: Path) -> None:
    bodies = applications(Random(11), count=9, requests=100, words=300)
    log = written(tmp_path / "log.jsonl", rows(bodies))
    assert analyze(log) == analyze(log)


def test_tools_that_are_no_lists_and_messages_that_are_odd(tmp_path: Path) -> None:
    rng = Random(12)
    odd: list[dict[str, object]] = [
        {"messages": [{"role": "user", "content": None}, asked(rng)], "tools": "none"},
        {"messages": [{"role": "system", "content": [1, {"type": "image"}]}, asked(rng)]},
        {"messages": [{"content": "x"}], "functions": [3], "tools": [{}]},
        {"input": ["a", {"role": "user", "content": "b"}], "instructions": 5},
        {"prompt": [1, 2, 3]},
        {"prompt": [[1, 2], [3]]},
        {"prompt": ["a", "b"], "cache_salt": [1]},
        {
            "messages": [{"role": "system", "content": "\ud83d half"}, asked(rng)],
            "tools": ["\ud83d"],
        },
    ]
    analysis = analyze(written(tmp_path / "log.jsonl", rows(odd * 4)), show_text=True)
    assert analysis.requests == 32
    analysis._repr_html_().encode()
    json.dumps(analysis.to_dict())


# -- bounds and broken files -----------------------------------------------------------------------


def test_a_longer_log_is_read_in_part_and_says_so(tmp_path: Path) -> None:
    bodies = applications(Random(13), count=3, requests=80, words=100)
    log = written(tmp_path / "log.jsonl", rows(bodies))
    analysis = analyze(log, max_requests=40)
    assert (analysis.requests, analysis.complete) == (40, False)
    code, output = run(log, "--max-requests", 40)
    assert code == 0
    assert "the first of a longer log" in output
    assert analyze(log).complete


def test_kept_blocks_and_text_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = applications(Random(14), count=3, requests=80, words=100)
    log = written(tmp_path / "log.jsonl", rows(bodies))
    monkeypatch.setattr("prefixroute.simulator.analysis.api.MAX_BLOCKS", 100)
    monkeypatch.setattr("prefixroute.simulator.analysis.api.SEARCHED_BYTES", 10_000)
    analysis = analyze(log)
    assert not analysis.complete
    assert 30 < analysis.requests < 80
    assert analysis.search is not None
    assert analysis.search.requests < 15


@pytest.mark.parametrize("packed", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_compressed_logs(tmp_path: Path, packed: object) -> None:
    bodies = applications(Random(15), count=3, requests=30, words=100)
    data = written(tmp_path / "log.jsonl", rows(bodies)).read_bytes()
    file = tmp_path / "log.bin"
    file.write_bytes(packed(data))  # type: ignore[operator]
    assert analyze(file).requests == 30


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    log = written(tmp_path / "log.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    log.write_text(log.read_text() + '{"prompt": "c')
    with pytest.raises(TraceError, match=r"line 3: .*truncated"):
        analyze(log)
    code, output = run(log)
    assert code == 2
    assert "line 3" in " ".join(output.split())


def test_a_cut_off_gzip_file_is_named(tmp_path: Path) -> None:
    bodies = applications(Random(16), count=3, requests=30, words=100)
    data = written(tmp_path / "log.jsonl", rows(bodies)).read_bytes()
    file = tmp_path / "log.jsonl.gz"
    file.write_bytes(gzip.compress(data)[:-900])
    with pytest.raises(TraceError, match=r"line \d+"):
        analyze(file)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"body": 3}, "Expected `object"),
        ({"body": {"max_tokens": 3}}, "no prompt"),
        ({"max_tokens": 3}, "no prompt"),
        ({"body": {"prompt": "x"}, "output_tokens": -1}, "output_tokens=-1"),
        ([1], "Expected `object`"),
    ],
)
def test_what_is_no_request_is_refused(tmp_path: Path, line: object, why: str) -> None:
    with pytest.raises(TraceError, match=why):
        list(read_requests(written(tmp_path / "log.jsonl", [line])))


def test_read_trace_still_wants_times(tmp_path: Path) -> None:
    log = written(tmp_path / "log.jsonl", [{"body": {"prompt": "x"}}])
    with pytest.raises(TraceError, match='no "time"'):
        read_trace(log)
    [logged] = read_requests(log)
    assert (logged.timed, logged.told_output) == (False, False)
    with pytest.raises(TraceError):
        read_trace(written(tmp_path / "log.jsonl", [{"prompt": "x"}]))


@pytest.mark.parametrize(
    "settings",
    [{"replicas": 0}, {"routers": 0}, {"cache_tokens": -1}, {"max_requests": 0},
     {"prefill_tokens_per_s": 0.0}],
)  # fmt: skip
def test_settings_out_of_range(tmp_path: Path, settings: dict[str, int]) -> None:
    log = written(tmp_path / "log.jsonl", [{"prompt": "x"}])
    with pytest.raises(ConfigurationError):
        analyze(log, **settings)  # type: ignore[arg-type]


# -- the command -----------------------------------------------------------------------------------


def test_the_command_says_what_to_change(tmp_path: Path) -> None:
    rng = Random(17)
    rules, start = prose(rng, 400), datetime(2025, 1, 1, tzinfo=UTC)
    bodies = [chat(rng, f"Now: {start + timedelta(seconds=at)}\n{rules}") for at in range(60)]
    log = written(tmp_path / "log.jsonl", rows(bodies))
    code, output = run(log)
    assert code == 0
    assert output.startswith("Not as the prompts are")
    for part in ("messages[0].content (system), at character 5: a timestamp", "Now: <timestamp>",
                 "Remedy: move it to the end", "spread at random", "TTFT"):  # fmt: skip
        assert part in output
    assert rules[:30] not in output
    assert "2025-01-01" not in output
    assert "2025-01-01" in run(log, "--show-text")[1]


def test_the_command_prints_json(tmp_path: Path) -> None:
    bodies = applications(Random(18), count=30, requests=60, words=300)
    log = written(tmp_path / "log.jsonl", rows(bodies))
    code, output = run(log, "--json", "--replicas", 2, "--routers", 3)
    assert code == 0
    found = json.loads(output)
    assert (found["replicas"], found["routers"], found["requests"]) == (2, 3, 60)
    assert found["verdict"]["worth_it"] in (True, False)
    assert found["search"]["spoilers"] == []
    assert found == analyze(log, replicas=2, routers=3).to_dict()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    code, output = run(tmp_path / "none.jsonl")
    assert code == 2
    assert "No such file" in " ".join(output.split())
