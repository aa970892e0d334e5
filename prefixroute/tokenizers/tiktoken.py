"""``TiktokenTokenizer``: OpenAI's encodings, without a download that could hang."""

from __future__ import annotations

import importlib.util
import os
import threading
from typing import TYPE_CHECKING

from prefixroute.core.checks import check_int, check_number, refusal
from prefixroute.core.logs import log
from prefixroute.core.tokens import MAX_BYTES
from prefixroute.errors import ConfigurationError, TokenizerUnavailable
from prefixroute.tokenizers.vocabulary import (
    MissingVocabulary,
    Source,
    Vocabulary,
    build_encoding,
    download,
    find,
)

if TYPE_CHECKING:
    import tiktoken

__all__ = ["TiktokenTokenizer"]


class TiktokenTokenizer:
    """Counts texts in the tokens of a tiktoken encoding, message by message.

    tiktoken knows no chat templates: what a template adds is taken for four tokens a message. All
    text is plain text, ``<|endoftext|>`` too.

    A named encoding's vocabulary is what ``vocabulary`` says, else it is looked for in tiktoken's
    cache. If it isn't there, one thread tries once to download it; until it has come, if ever,
    bytes are counted, and the log says so once. Nothing ever waits for it.

    Args:
        encoding: A ``tiktoken.Encoding``, or the name of one, such as ``"o200k_base"``.
        vocabulary: The named encoding's vocabulary: a file, or its bytes, gzip or not.
        download_timeout_s: How long that one try may take altogether, seconds; 0: there is none.
        max_bytes: How much of a prompt is encoded; the rest is counted in proportion.

    Raises:
        ConfigurationError: tiktoken is not installed, or knows no encoding of this name.
    """

    def __init__(
        self,
        encoding: tiktoken.Encoding | str,
        *,
        vocabulary: Vocabulary = None,
        download_timeout_s: float = 10.0,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        check_int("TiktokenTokenizer", "max_bytes", max_bytes, 1)
        self.max_bytes = max_bytes
        self._timeout_s = check_number(
            "TiktokenTokenizer", "download_timeout_s", download_timeout_s
        )
        self._why = ""
        self._source: Source | None = None
        self._tries: dict[int, threading.Thread] = {}  # by process: a child has no threads yet
        self._encoding: tiktoken.Encoding | None = None
        if not isinstance(encoding, str):
            if not callable(getattr(encoding, "encode_ordinary", None)):
                rule = "a tiktoken.Encoding, or the name of one, such as 'o200k_base'"
                raise refusal("TiktokenTokenizer", "encoding", encoding, rule)
            self._name, self._encoding = encoding.name, encoding
            return
        if importlib.util.find_spec("tiktoken") is None:
            raise ConfigurationError(
                f"TiktokenTokenizer({encoding!r}) needs tiktoken: "
                "pip install 'prefixroute[tiktoken]'"
            )
        self._name = encoding
        self._find(vocabulary)

    def _find(self, vocabulary: Vocabulary) -> None:
        try:
            self._encoding = build_encoding(self._name, lambda source: find(source, vocabulary))
        except ConfigurationError:
            raise
        except MissingVocabulary as error:
            self._why, self._source = str(error), error.source
            self._try()
        except Exception as error:  # noqa: BLE001 - a file that is no vocabulary
            self._why = f"its vocabulary cannot be read ({type(error).__name__})"

    def __repr__(self) -> str:
        return f"<TiktokenTokenizer {self.name}>"

    @property
    def name(self) -> str:
        """The encoding's name, and whether it is there: bytes and tokens do not agree."""
        return f"tiktoken {self._name}{'' if self._encoding is not None else ' (missing)'}"

    def encode(self, text: str, /) -> list[int]:
        """Return the ids of a text; no special token is recognised in it.

        Raises:
            TokenizerUnavailable: There is no vocabulary (yet).
        """
        encoding = self._encoding
        if encoding is None:
            self._try()
            raise TokenizerUnavailable(self._why)
        return encoding.encode_ordinary(text)

    def _try(self) -> None:
        """Start the one try of this process to download the vocabulary."""
        source = self._source
        if source is None or self._timeout_s == 0.0 or os.getpid() in self._tries:
            return
        thread = threading.Thread(
            target=self._download, args=(source,), name="prefixroute-vocabulary", daemon=True
        )
        if self._tries.setdefault(os.getpid(), thread) is thread:
            thread.start()

    def _download(self, source: Source) -> None:
        try:
            data = download(source, self._timeout_s)
            self._encoding = build_encoding(self._name, lambda _: data)
        except Exception as error:  # noqa: BLE001 - the warning has been given, or will be
            log.info("no vocabulary from %s (%s)", source.url, type(error).__name__)
        else:
            log.info("the vocabulary of %s has come: tokens are counted from now on", self._name)
