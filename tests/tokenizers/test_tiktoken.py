"""tiktoken's encodings, and where their vocabularies come from."""

from __future__ import annotations

import base64
import gzip
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefixroute import ConfigurationError, Router, TokenizerUnavailable
from prefixroute.core.request import read_prompt
from prefixroute.tokenizers import TiktokenTokenizer
from prefixroute.tokenizers import tiktoken as module
from prefixroute.tokenizers.vocabulary import MissingVocabulary, Source, download, find
from tests.core.bodies import chat, completion, user
from tests.tokenizers.models import encoding, needs_tiktoken, needs_vocabulary, vocabulary_file
from tests.tokenizers.support import URLS, read, router, warned

pytestmark = needs_tiktoken


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
    return folder


class TestAnEncoding:
    def test_counts_texts(self) -> None:
        tokenizer = TiktokenTokenizer(encoding())
        assert read(completion("hello world"), tokenizer).size == 2
        assert read(chat(user("hello world")), tokenizer).size == 2 + 4
        assert tokenizer.name == "tiktoken small"

    def test_serves_without_a_wrapper_too(self) -> None:
        assert read(completion("hello world"), encoding()).size == 2

    @pytest.mark.parametrize("text", ["<|endoftext|>", "hello<|endoftext|>", "<|im_start|>"])
    def test_takes_special_tokens_as_text(self, text: str, caplog: Any) -> None:
        with warned(caplog) as found:
            prompt = read(completion(text), TiktokenTokenizer(encoding()))
        assert prompt.size > 5
        assert not found

    @pytest.mark.parametrize("given", [None, 3, b"o200k_base", object()])
    def test_is_an_encoding(self, given: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"tiktoken\.Encoding"):
            TiktokenTokenizer(given)

    @pytest.mark.parametrize("bad", [{"max_bytes": 0}, {"download_timeout_s": -1}])
    def test_refuses_numbers_that_cannot_be(self, bad: Any) -> None:
        with pytest.raises(ConfigurationError):
            TiktokenTokenizer(encoding(), **bad)

    def test_encodes_no_more_than_it_is_told(self) -> None:
        prompt = read(
            completion("hello world " * 9000), TiktokenTokenizer(encoding(), max_bytes=99)
        )
        assert prompt.size == pytest.approx(9000 * 3, rel=0.3)


@needs_vocabulary
class TestAName:
    def test_takes_its_vocabulary_from_a_file_or_bytes(self) -> None:
        path = vocabulary_file("cl100k_base")
        plain = gzip.decompress(path.read_bytes())
        for given in (path, str(path), path.read_bytes(), plain):
            tokenizer = TiktokenTokenizer("cl100k_base", vocabulary=given)
            assert tokenizer.encode("hello world") == [15339, 1917]
            assert tokenizer.name == "tiktoken cl100k_base"

    def test_takes_its_vocabulary_from_tiktokens_cache(self, empty_cache: Path) -> None:
        empty_cache.mkdir()
        data = gzip.decompress(vocabulary_file("cl100k_base").read_bytes())
        (empty_cache / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4").write_bytes(data)
        assert TiktokenTokenizer("cl100k_base").encode("hello world") == [15339, 1917]

    def test_may_build_on_another_one(self) -> None:
        path = vocabulary_file("o200k_base")
        tokenizer = TiktokenTokenizer("o200k_harmony", vocabulary=path)
        assert len(tokenizer.encode("<|start|>")) > 1

    def test_leaves_tiktoken_itself_as_it_is(self) -> None:
        import tiktoken.registry

        tiktoken.list_encoding_names()
        recipe = (tiktoken.registry.ENCODING_CONSTRUCTORS or {})["cl100k_base"]
        loader = recipe.__globals__["load_tiktoken_bpe"]
        TiktokenTokenizer("cl100k_base", vocabulary=vocabulary_file("cl100k_base"))
        assert recipe.__globals__["load_tiktoken_bpe"] is loader
        assert "cl100k_base" not in tiktoken.registry.ENCODINGS

    @pytest.mark.parametrize(
        "given", [b"", b"garbage", b"\x1f\x8bnot gzip", "/nowhere/at/all", b"aGk= 1\n"]
    )
    def test_with_another_vocabulary_counts_bytes(self, given: Any, caplog: Any) -> None:
        tokenizer = TiktokenTokenizer("cl100k_base", vocabulary=given)
        made = router(tokenizer)
        with warned(caplog) as found:
            for _ in range(3):
                assert made.read(chat(user("hello"))) == read_prompt(chat(user("hello")))
        assert len(found) == 1
        assert tokenizer._tries == {}  # what was given is what was wanted


def test_a_name_that_tiktoken_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"o300k.*o200k_base"):
        TiktokenTokenizer("o300k")


def test_a_missing_extra_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'prefixroute\[tiktoken\]'"):
        TiktokenTokenizer("o200k_base")


class Silent:
    """A host that takes connections and never answers."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}/vocabulary"
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self.connections.append(self._server.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._server.close()
        for connection in self.connections:
            connection.close()


class TestDownloads:
    """The vocabulary is not there, and may be fetched."""

    def fetched_from(self, monkeypatch: pytest.MonkeyPatch, fetch: Any) -> list[float]:
        tries: list[float] = []

        def fetching(source: Source, timeout_s: float) -> bytes:
            tries.append(timeout_s)
            data = fetch(source)
            assert isinstance(data, bytes)
            return data

        monkeypatch.setattr(module, "download", fetching)
        return tries

    def test_are_tried_once_by_twenty_threads_and_nobody_waits(
        self, monkeypatch: pytest.MonkeyPatch, caplog: Any
    ) -> None:
        over = threading.Event()

        def never(source: Source) -> bytes:
            over.wait()
            raise OSError

        tries = self.fetched_from(monkeypatch, never)
        made = router(TiktokenTokenizer("o200k_base"))
        body = chat(user("hello"))
        prompts: list[Any] = []
        threads = [
            threading.Thread(target=lambda: prompts.append(made.read(body))) for _ in range(20)
        ]
        with warned(caplog) as found:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
        over.set()
        assert prompts == [read_prompt(body)] * 20
        assert tries == [10.0]
        assert len(found) == 1
        assert "TIKTOKEN_CACHE_DIR" in found[0]

    def test_that_fail_are_not_repeated(self, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
        def fail(source: Source) -> bytes:
            raise ConnectionError(source.url)

        tries = self.fetched_from(monkeypatch, fail)
        tokenizer = TiktokenTokenizer("o200k_base")
        for thread in tokenizer._tries.values():
            thread.join(10)
        with warned(caplog) as found:
            for _ in range(5):
                router(tokenizer).route(chat(user("hello")))
        assert len(tries) == 1
        assert len(found) == 5  # by five routers
        assert repr(tokenizer) == "<TiktokenTokenizer tiktoken o200k_base (missing)>"

    def test_can_be_turned_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tries = self.fetched_from(monkeypatch, lambda source: b"")
        tokenizer = TiktokenTokenizer("o200k_base", download_timeout_s=0)
        with pytest.raises(TokenizerUnavailable, match="no vocabulary in"):
            tokenizer.encode("x")
        assert tries == []

    @needs_vocabulary
    def test_that_succeed_are_used(self, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
        data = gzip.decompress(vocabulary_file("cl100k_base").read_bytes())
        tries = self.fetched_from(monkeypatch, lambda source: data)
        tokenizer = TiktokenTokenizer("cl100k_base")
        made = Router(URLS, tokenizer=tokenizer)
        for thread in tokenizer._tries.values():
            thread.join(30)
        with warned(caplog) as found:
            assert made.read(chat(user("hello"))).counted
        assert len(tries) == 1
        assert not found


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What httpx.stream answers, by attribute; nothing leaves the process."""
    import httpx

    reply: dict[str, Any] = {"status": 200, "content": b"aGk= 1\n"}
    asked: list[str] = []
    reply["asked"] = asked

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(reply["status"], content=reply["content"])

    client = httpx.Client(transport=httpx.MockTransport(handle))
    monkeypatch.setattr(httpx, "stream", client.stream)
    yield reply
    client.close()


URL = "https://example.invalid/small.tiktoken"
SHA = "e14ad2dbcd2dd0ba8a1e41a5a9e2ed4f4e5fa1c1d4ad1fd3a9c7d2a4d8d1a1a1"


class TestFetching:
    def test_keeps_a_copy_where_tiktoken_looks_for_it(
        self, server: dict[str, Any], empty_cache: Path
    ) -> None:
        source = Source(url=URL, sha256=None)
        assert download(source, 5.0) == b"aGk= 1\n"
        assert server["asked"] == [URL]
        assert [path.read_bytes() for path in empty_cache.iterdir()] == [b"aGk= 1\n"]
        assert find(source, None) == b"aGk= 1\n"

    def test_keeps_none_if_told_so(
        self, server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
        source = Source(url=URL, sha256=None)
        assert download(source, 5.0) == b"aGk= 1\n"
        with pytest.raises(MissingVocabulary):
            find(source, None)

    def test_refuses_another_file(self, server: dict[str, Any], empty_cache: Path) -> None:
        with pytest.raises(MissingVocabulary, match="not the vocabulary"):
            download(Source(url=URL, sha256=SHA), 5.0)
        assert not empty_cache.exists()

    def test_refuses_an_error_page(self, server: dict[str, Any]) -> None:
        server["status"] = 503
        with pytest.raises(Exception, match="503"):
            download(Source(url=URL, sha256=None), 5.0)

    def test_gives_up_on_a_host_that_drips(self, server: dict[str, Any]) -> None:
        def drip() -> Iterator[bytes]:
            while True:
                time.sleep(0.01)
                yield b"x"

        server["content"] = drip()
        with pytest.raises(TimeoutError):
            download(Source(url=URL, sha256=None), 0.1)

    def test_gives_up_on_a_file_without_an_end(self, server: dict[str, Any]) -> None:
        server["content"] = (b"x" * 2**22 for _ in range(1000))
        with pytest.raises(TimeoutError):
            download(Source(url=URL, sha256=None), 60.0)

    def test_gives_up_on_a_host_that_never_answers(self) -> None:
        host = Silent()
        try:
            with pytest.raises(Exception, match="timed out"):
                download(Source(url=host.url, sha256=None), 0.1)
        finally:
            host.close()


def test_gpt2_is_r50k() -> None:
    tokenizer = TiktokenTokenizer("gpt2", download_timeout_s=0)
    with pytest.raises(TokenizerUnavailable, match=r"no vocabulary"):
        tokenizer.encode("x")


def test_importing_the_tokenizers_loads_neither_library() -> None:
    import subprocess

    code = (
        "import sys, prefixroute.tokenizers\n"
        "print({'tiktoken', 'transformers', 'tokenizers', 'httpx'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_vocabulary_is_read_as_it_is_published() -> None:
    from prefixroute.tokenizers.vocabulary import _ranks

    lines = [base64.b64encode(token) + b" %d" % rank for rank, token in enumerate([b"a", b" b"])]
    assert _ranks(b"\n".join(lines) + b"\n\n") == {b"a": 0, b" b": 1}
