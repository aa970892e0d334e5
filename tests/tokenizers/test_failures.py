"""Whatever goes wrong in a tokenizer: bytes instead, one warning, no stall, nothing raised."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from prefixroute import TokenizerUnavailable
from prefixroute.core.request import read_prompt
from tests.core.bodies import chat, completion, user
from tests.tokenizers.support import Letters, Templated, chatml, read, router, warned


class PanicException(BaseException):
    """What a panic in Rust is to Python; a class of this name comes from each library."""


class Failing(Letters):
    """Raises something for every text with `bad` in it."""

    def __init__(self, error: BaseException, bad: str = "") -> None:
        super().__init__()
        self._error, self._bad = error, bad

    def encode(self, text: str, /) -> list[int]:
        ids = super().encode(text)
        if self._bad in text:
            raise self._error
        return ids


BODIES = [chat(user("hello"), user("you")), completion("hello"), completion(["a", "b"])]


@pytest.mark.parametrize(
    "error", [ValueError("secret"), MemoryError(), RecursionError(), PanicException("secret")]
)
class TestErrors:
    def test_leave_the_text_as_bytes_and_are_logged_once(
        self, error: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = router(Failing(error))
        with warned(caplog) as found:
            for body in BODIES * 3:
                assert made.read(body).chain
        assert len(found) == 1
        assert type(error).__name__ in found[0]
        assert "secret" not in found[0]

    def test_of_one_text_concern_no_other(
        self, error: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        with warned(caplog):
            prompt = read(chat(user("abab"), user("bad! bad! bad!!!")), Failing(error, "bad"))
        assert prompt.ends == (0, 2 + 4, 6 + 4 + 4)
        assert prompt.counted

    def test_are_not_made_again(self, error: BaseException) -> None:
        tokenizer = Failing(error)
        made = router(tokenizer)
        for _ in range(5):
            made.route(completion("hello"))
        assert tokenizer.encoded == ["hello"]

    def test_of_a_template_leave_the_messages(
        self, error: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(_: Any) -> str:
            raise error

        made = router(Templated(refuse))
        with warned(caplog) as found:
            prompt = [made.read(chat(user("hello"))) for _ in range(3)][-1]
        assert prompt.chain == read(chat(user("hello")), Letters()).chain
        assert len(found) == 1
        assert "secret" not in found[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit()])
def test_the_way_out_of_the_program_stays_open(error: BaseException) -> None:
    with pytest.raises(type(error)):
        router(Failing(error)).route(completion("hello"))


@pytest.mark.parametrize(
    "returned", [None, "ids", [1.5], [None], ["a"], [[1], [2]], [2**64], 5, object(), {"x": 1}]
)
def test_what_is_no_list_of_ids_counts_as_an_error(
    returned: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Letters):
        def encode(self, text: str, /) -> Any:
            return returned

    class OddTemplate(Templated):
        def render(self, chat: Any, /) -> Any:
            return returned

    with warned(caplog) as found:
        assert read(completion("hello there"), Odd()).size == 2
    assert len(found) == 1
    with warned(caplog) as found:
        assert read(chat(user("hello")), OddTemplate(chatml)).chain
    assert len(found) <= 1


class TestUnavailable:
    class Missing(Templated):
        here = False

        def encode(self, text: str, /) -> list[int]:
            if not self.here:
                raise TokenizerUnavailable("no vocabulary in /cache: put it there")
            return super().encode(text)

    def test_counts_bytes_as_without_a_tokenizer(self, caplog: pytest.LogCaptureFixture) -> None:
        made = router(self.Missing(chatml))
        with warned(caplog) as found:
            for body in BODIES:
                assert made.read(body) == read_prompt(body)
        assert len(found) == 1
        assert "no vocabulary in /cache: put it there" in found[0]

    def test_counts_tokens_once_it_is_there(self) -> None:
        tokenizer = self.Missing(chatml)
        made = router(tokenizer)
        assert not made.read(BODIES[0]).counted
        tokenizer.here = True
        assert made.read(BODIES[0]).counted

    def test_says_so_once_for_all_threads(self, caplog: pytest.LogCaptureFixture) -> None:
        made = router(self.Missing(chatml))
        threads = [threading.Thread(target=made.read, args=(BODIES[0],)) for _ in range(20)]
        with warned(caplog) as found:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(found) == 1


RUNS = [
    " " * 10**6,
    "=" * 10**6,
    "\n" * 10**6,
    "a" * 10**6,
    "中" * 10**6,
    "😀" * 10**5,
    "0" * 10**6,
]


@pytest.mark.parametrize("text", RUNS, ids=[text[0] for text in RUNS])
@pytest.mark.parametrize("make", [completion, lambda text: chat(user(text))])
def test_a_run_without_an_end_is_not_encoded(
    text: str, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Letters()
    with warned(caplog) as found:
        prompt = read(make(text), tokenizer)
    assert tokenizer.bytes_encoded <= 2 * 4096  # its end may be
    assert len(found) == 1
    assert prompt.counted
    assert prompt.size == pytest.approx(len(text.encode()) / 4, rel=0.15)


def test_a_run_among_words_leaves_them_counted() -> None:
    words = [" ".join(f"{n:05}" for n in range(at, at + 5000)) for at in (0, 5000)]
    tokenizer = Letters()
    prompt = read(completion((" " * 20_000).join(words)), tokenizer)
    assert tokenizer.bytes_encoded >= 60_000 - 2 * 4096
    assert prompt.size == pytest.approx(60_000 + 20_000 / 4, rel=0.1)


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff" * 5000, "x" * 4095 + "\ud83d\ude00" + "y"])
def test_half_a_surrogate_pair_is_no_error(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with warned(caplog) as found:
        for tokenizer in (Letters(), Templated(chatml)):
            for body in (chat(user(text)), completion(text), chat(user([{"a": text}]))):
                assert read(body, tokenizer).chain
    assert not [warning for warning in found if "raised" in warning]


def test_nothing_of_a_prompt_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Talkative(Letters):
        def encode(self, text: str, /) -> list[int]:
            raise ValueError(text)

    with warned(caplog):
        read(chat(user("hunter2")), Talkative())
    assert "hunter2" not in caplog.text


def test_the_reader_costs_no_recursion() -> None:
    deep: Any = "x"
    for _ in range(sys.getrecursionlimit() // 2):
        deep = [deep]
    assert isinstance(read(chat(user(deep)), Templated(chatml)).chain, tuple)
