from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from prefixroute.core.prompt import KeySource
from prefixroute.errors import ConfigurationError
from prefixroute.simulator import Change, TraceError, read_trace
from prefixroute.simulator import traces as traces_module

from .support import request, trace


def line(at_ms: float, *ids: int, tokens: int | None = None, **more: object) -> str:
    size = 512 * len(ids) if tokens is None else tokens
    row = {"timestamp": at_ms, "input_length": size, "output_length": 7, "hash_ids": ids}
    return json.dumps({**row, **more})


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_mooncakes_lines_are_read(tmp_path: Path) -> None:
    file = written(tmp_path / "talk.jsonl", line(1500, 0, 5), line(500, 0, 4, tokens=600), "")
    read = read_trace(file)
    assert (read.name, read.block_tokens, len(read)) == ("talk", 512, 2)
    first, second = read.requests
    assert (first.at_s, second.at_s) == (0.0, 1.0)  # sorted, from 0 on
    assert (first.prompt.size, second.prompt.size) == (600, 1024)
    assert first.prompt.chain[0] == second.prompt.chain[0]
    assert first.prompt.chain[1] != second.prompt.chain[1]
    assert first.prompt.stream
    assert first.output_tokens == 7
    assert read.tokens == 1624


def test_compressed_files_are_recognised_by_their_bytes(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"  # whatever its name says
    file.write_bytes(gzip.compress(line(0, 1, 2).encode()))
    assert len(read_trace(file)) == 1
    file.write_bytes(zstandard.ZstdCompressor().compress(line(0, 1, 2).encode()))
    assert len(read_trace(file)) == 1


def test_what_needs_zstandard_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("prefixroute.simulator.reading.import_module", missing)
    file = tmp_path / "trace.jsonl.zst"
    file.write_bytes(b"\x28\xb5\x2f\xfd rest")
    with pytest.raises(TraceError, match="install zstandard"):
        read_trace(file)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        (line(0, 1).replace("512", '"512"'), "Expected `int`"),
        (line(0, 1, tokens=600), "must end in the last of 1 blocks"),
        (line(0, 1, 2, output_length=-1), "output_length=-1"),
        ('{"timestamp": 3, "hash_ids": [1]}', "input_length"),
        ('{"timestamp": 5, "leave": 1, "join": 2}', '"join" or "leave"'),
        ('{"timestamp": 5, "leave": -1}', '"join" or "leave"'),
    ],
)
def test_a_broken_line_is_named_with_the_reason(tmp_path: Path, bad: str, why: str) -> None:
    file = written(tmp_path / "t.jsonl", line(0, 1), "", line(1, 2), bad, line(2, 3))
    with pytest.raises(TraceError, match="line 4: ") as caught:
        read_trace(file)
    assert why in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_file_that_is_cut_off_says_after_which_line(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl.gz"
    packed = gzip.compress("".join(line(n, n, n + 1) + "\n" for n in range(5000)).encode())
    file.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(TraceError, match=r"broken after line \d+"):
        read_trace(file)


@pytest.mark.parametrize("content", ["", "\n\n", '{"timestamp": 0, "leave": 1}\n'])
def test_a_file_without_requests_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(content)
    with pytest.raises(TraceError, match="no request"):
        read_trace(file)


def test_a_file_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none.jsonl")


# -- logs of bodies -------------------------------------------------------------------


def body(text: str, **more: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def logged(**row: object) -> str:
    return json.dumps(row)


def test_bodies_are_read_with_any_time(tmp_path: Path) -> None:
    anthropic = {**body("hi " * 900), "system": "be brief", "max_tokens": 5}
    file = written(
        tmp_path / "log.jsonl",
        logged(time=100.5, body=body("hi"), output_tokens=3),
        logged(timestamp=101_000, body=anthropic, path="/v1/messages"),
        logged(time="1970-01-01T00:01:42+00:00", body={"model": "m", "prompt": "once"}),
    )
    read = read_trace(file)
    assert [one.at_s for one in read.requests] == pytest.approx([0.0, 0.5, 1.5])
    assert [one.prompt.source for one in read.requests] == [
        KeySource.MESSAGES, KeySource.MESSAGES, KeySource.TEXT,
    ]  # fmt: skip
    assert [one.output_tokens for one in read.requests] == [3, 256, 256]
    assert read.requests[1].prompt.tokens > 600
    assert read.requests[0].body == body("hi")
    assert read.block_tokens == 256


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (logged(body=body("hi")), 'no "time"'),
        (logged(time=1.0, body={"model": "m"}), "no prompt, messages or input"),
        (logged(time="yesterday", body=body("hi")), "yesterday"),
        (logged(time=1.0, body=body("hi"), output_tokens=-1), "output_tokens=-1"),
        (logged(time=1.0), "body"),
    ],
)
def test_a_logged_line_that_cannot_be_used_says_why(tmp_path: Path, row: str, why: str) -> None:
    file = written(tmp_path / "log.jsonl", logged(time=0, body=body("a")), row)
    with pytest.raises(TraceError, match=f"line 2: .*{why}"):
        read_trace(file)


def test_words_in_a_body_are_no_change_of_the_membership(tmp_path: Path) -> None:
    said = logged(timestamp=0, body=body('say "leave" or "join"'))
    assert len(read_trace(written(tmp_path / "log.jsonl", said))) == 1


# -- traces ---------------------------------------------------------------------------


def test_changes_of_the_membership_come_with_the_requests(tmp_path: Path) -> None:
    file = written(
        tmp_path / "t.jsonl",
        '{"timestamp": 2000, "leave": 3}',
        line(1000, 1),
        '{"timestamp": 1500, "join": 8}',
    )
    leaves, joins = (
        Change(at_s=1.0, replica=3, joins=False),
        Change(at_s=0.5, replica=8, joins=True),
    )
    assert read_trace(file).changes == (joins, leaves)


def test_times_in_steps_are_spread_within_them() -> None:
    coarse = trace(*(request(3.0 * (n // 10), [n]) for n in range(100)))
    assert coarse.step_s == 3.0
    spread = coarse.spread(1)
    assert spread == coarse.spread(1) != coarse.spread(2)
    times = [one.at_s for one in spread.requests]
    assert times == sorted(times)
    assert len(set(times)) == 100
    assert {one.prompt for one in spread.requests} == {one.prompt for one in coarse.requests}
    assert 27.0 <= spread.duration_s < 30.0


def test_exact_times_are_left_alone() -> None:
    exact = trace(request(0.0, [1]), request(0.04, [2]), request(7.0, [3]))
    assert exact.step_s == 0.0
    assert exact.spread(1) is exact
    assert trace(request(1.0, [1])).spread(1).duration_s == 1.0
    regular = trace(*(request(float(n), [n]) for n in range(9)))
    assert regular.spread(1) is regular


def test_a_faster_trace_has_shorter_times() -> None:
    fast = trace(request(3.0, [1]), request(6.0, [2])).faster(3.0)
    assert [one.at_s for one in fast.requests] == [1.0, 2.0]
    with pytest.raises(ConfigurationError, match="speed"):
        fast.faster(0.0)


def test_replies_can_be_streamed_or_not() -> None:
    one = trace(request(0.0, [1]))
    assert one.streamed(stream=True).requests[0] is one.requests[0]
    assert not one.streamed(stream=False).requests[0].prompt.stream


def test_all_names_are_there() -> None:
    assert all(hasattr(traces_module, name) for name in traces_module.__all__)
