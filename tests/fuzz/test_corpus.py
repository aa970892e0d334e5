"""Every kept input, and inputs too big to keep, through every target."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
KEPT = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.glob("*/*"))
MEGABYTE = 2**20

BIG = {
    "deep lists": b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"messages":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
    "one letter": b'{"prompt":"' + b"a" * MEGABYTE + b'"}',
    "spaces": b'{"prompt":"' + b" " * MEGABYTE + b'"}',
    "no end": b'{"messages":[{"role":"user","content":"' + b"x" * MEGABYTE,
    "zeros": b"\0" * MEGABYTE,
    "many messages": b'{"messages":[' + b'{"role":"user","content":"a"},' * 20_000 + b"{}]}",
    "many keys": b"{" + b",".join(b'"k%d":1' % n for n in range(50_000)) + b"}",
    "a long number": b'{"prompt":[' + b"9" * 100_000 + b"]}",
    "escapes": b'{"prompt":"' + b"\\ud83d" * 50_000 + b'"}',
    "events": b"data: {}\n\n" * 50_000,
    "one long event": b"data: " + b"x" * MEGABYTE,
    "usage everywhere": b'{"usage":' * 20_000,
    "colons": b"data:" * 100_000,
}


def test_there_is_a_corpus_for_each_target() -> None:
    assert {name.partition("/")[0] for name in KEPT} == set(TARGETS)


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_input_holds(name: str) -> None:
    target = name.partition("/")[0]
    TARGETS[target]((CORPUS / name).read_bytes())


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("name", BIG)
@pytest.mark.timeout(20)
def test_a_big_input_holds(name: str, target: str) -> None:
    for first in (b"\x00?", b"\x01\x07", b"\x03?"):
        TARGETS[target](first + BIG[name])


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_nothing_and_one_byte_hold(target: str) -> None:
    TARGETS[target](b"")
    for value in range(256):
        TARGETS[target](bytes([value]))
