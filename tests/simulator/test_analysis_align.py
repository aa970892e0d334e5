from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from prefixroute.simulator.analysis.align import align, common_length
from prefixroute.simulator.analysis.kinds import PATTERN, kind_of, masked

texts = st.text(st.sampled_from("ab1 -:\n.é中"), max_size=80)


@given(texts, texts, texts)
def test_common_length_is_the_length_of_the_common_start(a: str, b: str, shared: str) -> None:
    a, b = shared + a, shared + b
    expected = next(
        (at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    assert common_length(a, 0, b, 0) == expected


@given(texts, texts, texts, texts)
def test_outside_of_the_differences_texts_are_equal(a: str, b: str, c: str, d: str) -> None:
    for first, second in ((a + c + b, a + d + b), (a, b), (a * 5 + c, d + a * 5)):
        alignment = align(first, second)
        i = j = 0
        for a0, a1, b0, b1 in alignment.differences:
            assert i <= a0 <= a1
            assert j <= b0 <= b1
            assert first[i:a0] == second[j:b0]
            i, j = a1, b1
        assert first[i : alignment.reached] == second[j : j + alignment.reached - i]


@given(texts, texts)
def test_each_difference_is_found_where_it_is(c: str, d: str) -> None:
    front, back = "Everything starts with this. ", " And then it goes on and on for long."
    alignment = align(front + c + back, front + d + back)
    for a0, a1, b0, b1 in alignment.differences:
        assert alignment.place(a0, a1) == (b0, b1)
    assert alignment.place(0, 5) == (0, 5)


def test_a_stretch_behind_an_insertion_moves() -> None:
    front, back = "Everything starts here: ", "\nand goes on in the same words for all."
    alignment = align(front + "x" + back, front + "xyz, longer" + back)
    start = len(front + "x") + 5
    found = alignment.place(start, start + 4)
    assert found is not None
    assert (front + "xyz, longer" + back)[slice(*found)] == (front + "x" + back)[start : start + 4]


def test_the_time_is_linear_in_the_length() -> None:
    def took(words: int) -> float:
        first = "".join(f"w{at} {'-' * (at % 7)}" for at in range(words))
        second = "".join(f"v{at} {'-' * (at % 5)}" for at in range(words))
        started = time.process_time()
        for a, b in ((first, second), ("a" * words, "b" * words), ("1-" * words, "1:" * words)):
            align(a, b)
        return time.process_time() - started

    took(100)
    assert took(200_000) < 0.5 + 40 * took(20_000)


@given(st.text(max_size=300))
def test_what_looks_like_a_value_is_masked(text: str) -> None:
    assert "\n" not in masked(text, "uuid") or "\n" not in text
    assert masked("key sk-abc123def456gh7 ", "time").startswith("key <random id>")


def test_kinds() -> None:
    assert kind_of(["12", "13", "14", "15"], "Call ") == "counter"
    assert kind_of(["12", "9", "31", "4"], "Call ") == "number"
    assert kind_of(["2025-05-03T10:00:00Z", "2025-05-03"], "at ") == "timestamp"
    assert kind_of(["Ann", "Bob Jones"], "Hello ") == "user"
    assert kind_of(["Ann", "Bob Jones"], "Weather: ") == "text"
    assert kind_of(["", " "], "x") == "whitespace"


def test_nothing_makes_the_pattern_slow() -> None:
    started = time.process_time()
    for text in (
        "a" * 20_000,
        "1" * 20_000,
        "1-" * 10_000,
        "a1-" * 7_000,
        "Mon, " * 4_000,
        "@" * 9,
    ):
        PATTERN.sub("", text)
    assert time.process_time() - started < 20
