"""What ``prefixroute watch`` draws, on terminals of all widths."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from prefixroute.cli.watch_screen import draw
from prefixroute.cli.watch_view import EndpointView, View

COLUMNS = (
    "endpoint", "health", "in flight", "waiting", "to compute", "req/s", "hit rate", "expected",
    "TTFT P50", "P95", "away from home", "failed", "ejected",
)  # fmt: skip


def busy(name: str) -> EndpointView:
    return EndpointView(
        id=name,
        health="healthy",
        in_flight=12,
        waiting=3,
        queued_tokens=16_800,
        requests_per_s=12.24,
        hit_rate=0.704,
        expected_hit_rate=0.86,
        ttft_p50_s=0.043,
        ttft_p95_s=1.23,
        spills={"bound": 2, "holder": 115, "load": 55},
        failures=4,
        ejections=1,
    )


def drawn(
    *names: str, width: int = 200, most: int | None = None, error: str | None = None
) -> list[str]:
    view = View(endpoints=[busy(name) for name in names], total=busy(""), window_s=30.0)
    console = Console(width=width, file=StringIO(), highlight=False)
    console.print(
        draw("http://h/metrics", view, age_s=150.0, error=error, width=console.width, most=most)
    )
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_values_are_in_units_of_people() -> None:
    lines = drawn("gpu-0")
    assert lines[1] == "1 endpoint, 12 in flight, 12.2 requests/s"
    assert lines[2] == "hit rate 70% (expected 86%), TTFT P50 43 ms, P95 1.2 s"
    row = next(line for line in lines if line.startswith("gpu-0"))
    values = "gpu-0 healthy 12 3 16,800 12.2 70% 86% 43 ms 1.2 s bound 2, holder 115, 4 1"
    assert " ".join(row.split()) == values
    assert any(line.strip() == "load 55" for line in lines)


@pytest.mark.parametrize("width", [200, 160, 120, 100, 80, 60])
def test_columns_that_have_no_room_are_left_out_and_said_and_none_is_cut(width: int) -> None:
    lines = drawn("http://gpu-0:8000/v1", "http://gpu-1:8000/v1", width=width)
    head = next(line for line in lines if line.startswith("endpoint"))
    shown = [name for name in COLUMNS if name in head]
    assert max(map(len, lines)) <= width
    assert head.split() == " ".join(shown).split()
    assert {"endpoint", "health", "in flight", "hit rate"} <= set(shown)
    missing = len(COLUMNS) - len(shown)
    assert any(f"{missing} column" in line for line in lines) == bool(missing)
    assert any(line.startswith("gpu-0 ") for line in lines)


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (["http://gpu-0:8000/v1", "http://gpu-1:8000/v1"], ["gpu-0", "gpu-1"]),
        (["http://a.models.svc:80/v1", "http://b.models.svc:80/v1"], ["a", "b"]),
        (["http://10.0.0.1:80/v1", "http://10.0.1.1:80/v1"], ["10.0.0.1", "10.0.1.1"]),
        (["http://h:8000/v1", "http://h:8001/v1"], ["h:8000", "h:8001"]),
        (["http://h:8000/a", "http://h:8000/b"], ["h:8000/a", "h:8000/b"]),
        (["http://gpu-0:8000/v1"], ["gpu-0:8000/v1"]),
        (["gpu-0", "gpu-10"], ["gpu-0", "gpu-10"]),
        (["a:1", ":1"], ["a:1", ":1"]),
    ],
)
def test_what_all_ids_end_with_is_left_out(ids: list[str], names: list[str]) -> None:
    lines = drawn(*ids)
    at = next(i for i, line in enumerate(lines) if line.startswith("endpoint"))
    rows = [line for line in lines[at + 1 :] if "healthy" in line]
    assert [row.split()[0] for row in rows] == names


def test_more_endpoints_than_lines_are_counted() -> None:
    lines = drawn(*(f"gpu-{number}" for number in range(64)), most=10)
    assert sum("healthy" in line for line in lines) == 10
    assert "and 54 more" in lines


def test_a_lost_source_is_said_first_with_the_age_of_what_is_shown() -> None:
    lines = drawn("gpu-0", error="ConnectError: refused\x1b[2J")
    assert lines[1] == "Cannot be read: ConnectError: refused?[2J; what is shown is 2 min old"
    assert any("healthy" in line for line in lines)


def test_without_endpoints_there_is_no_table() -> None:
    lines = drawn()
    assert lines[1].startswith("0 endpoints")
    assert not any(line.startswith("endpoint ") for line in lines)
