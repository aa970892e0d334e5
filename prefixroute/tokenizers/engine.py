"""``EngineTokenizer``: asks an engine how it tokenizes, for those who can pay for the calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from prefixroute.core.checks import check_int, check_number
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.tokens import Chat
from prefixroute.core.urls import split_url
from prefixroute.errors import TokenizerUnavailable

if TYPE_CHECKING:
    import httpx

__all__ = ["EngineTokenizer"]

_MAX_BYTES: Final = 2**16
_IDLE_S: Final = 2.0
"""llama.cpp closes idle connections after 5 s."""

_REFUSED: Final = (400, 422)
_UNKNOWN: Final = (404, 405, 501)


class _Renders(Enum):
    """How an engine shows what its template makes of a chat."""

    APPLY_TEMPLATE = "llama.cpp"
    DETOKENIZE = "vLLM"
    NOT = "none"


class EngineTokenizer:
    """Counts in the tokens of a running engine, through its ``/tokenize`` (vLLM, llama.cpp).

    Every text that was not asked for before costs a call, 1 to 5 ms where the engine is near and
    idle, and every chat one or two more, for its template. The call is a blocking one, in the
    thread that routes: in an event loop everything waits for it. A tokenizer of the model in the
    process itself costs a tenth of that; use this one where there is none.

    An engine that does not answer in time is left alone for a while, and bytes are counted.

    Args:
        url: The engine's URL, as an endpoint's; or an :class:`Endpoint`, for its key and headers.
        model: Named in every call; vLLM needs none for its first model.
        timeout_s: For one call, seconds.
        retry_after_s: How long it is left alone after it failed, seconds.
        max_bytes: How much of a prompt is encoded; the rest is counted in proportion.
        transport: Sends the calls in place of ``httpx``'s own transport.

    Raises:
        ConfigurationError: A value that cannot work.
    """

    def __init__(
        self,
        url: Endpoint | str,
        *,
        model: str | None = None,
        timeout_s: float = 0.25,
        retry_after_s: float = 30.0,
        max_bytes: int = _MAX_BYTES,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_int("EngineTokenizer", "max_bytes", max_bytes, 1)
        self.max_bytes = max_bytes
        self._timeout_s = check_number("EngineTokenizer", "timeout_s", timeout_s, above=True)
        self._retry_after_s = check_number("EngineTokenizer", "retry_after_s", retry_after_s)
        self._endpoint = url if isinstance(url, Endpoint) else Endpoint(url)
        self._model, self._transport, self._clock = model, transport, clock
        self._clients: dict[int, httpx.Client] = {}  # by process: a child has its own connections
        self._closed_until = -float("inf")
        self._renders: _Renders | None = None

    def __repr__(self) -> str:
        return f"<EngineTokenizer {self._endpoint.id}>"

    @property
    def name(self) -> str:
        """Of the model: its engines tokenize alike, whichever is asked."""
        return f"engine {self._model or ''}".strip()

    def encode(self, text: str, /) -> Sequence[int]:
        """Return the ids of a text; of special tokens in it only llama.cpp knows that they are not.

        Raises:
            TokenizerUnavailable: The engine does not answer.
        """
        return self._tokenize(text, special=False)

    def encode_prompt(self, text: str, /) -> Sequence[int]:
        """Return the ids of a text, special tokens as such.

        Raises:
            TokenizerUnavailable: The engine does not answer.
        """
        return self._tokenize(text, special=True)

    def _tokenize(self, text: str, *, special: bool) -> Sequence[int]:
        body = {
            "content": text,  # llama.cpp's names
            "add_special": False,
            "parse_special": special,
            "prompt": text,  # vLLM's
            "add_special_tokens": False,
        }
        status, reply = self._ask("/tokenize", body)
        if status != 200:
            raise self._gave_up(f"its /tokenize answers {status}")
        return self._ids(reply)

    def _ids(self, reply: Mapping[str, Any]) -> Sequence[int]:
        tokens = reply.get("tokens")
        if not isinstance(tokens, list):
            raise self._gave_up("its /tokenize returns no tokens")
        return tokens

    # -- chats -------------------------------------------------------------------

    def render(self, chat: Chat, /) -> str | None:
        """Return the prompt that the engine's template makes of a chat; ``None``: it tells nobody.

        Raises:
            TokenizerUnavailable: The engine does not answer.
            ValueError: The template refuses the chat.
        """
        body: dict[str, Any] = {"messages": list(chat.messages), "add_generation_prompt": True}
        given = (("tools", chat.tools), ("documents", chat.documents))
        body |= {name: list(value) for name, value in given if value is not None}
        if chat.template_kwargs:
            body["chat_template_kwargs"] = dict(chat.template_kwargs)
        if self._renders in (None, _Renders.APPLY_TEMPLATE):
            status, reply = self._ask("/apply-template", body)
            if status == 200:
                self._renders = _Renders.APPLY_TEMPLATE
                return self._prompt(reply)
            if status not in _UNKNOWN:
                raise _refusal(status)
            self._renders = _Renders.DETOKENIZE
        return self._detokenized(body) if self._renders is _Renders.DETOKENIZE else None

    def _detokenized(self, body: dict[str, Any]) -> str | None:
        """Return what vLLM makes of a chat: its tokens, turned back into text."""
        status, reply = self._ask("/tokenize", {**body, "add_special_tokens": False})
        if status in _REFUSED:
            raise _refusal(status)
        if status == 200:
            status, reply = self._ask("/detokenize", {"tokens": self._ids(reply)})
        if status in _UNKNOWN:
            self._renders = _Renders.NOT
            return None
        if status != 200:
            raise self._gave_up(f"it answers {status} when asked for a chat's prompt")
        return self._prompt(reply)

    def _prompt(self, reply: Mapping[str, Any]) -> str:
        prompt = reply.get("prompt")
        if not isinstance(prompt, str):
            raise self._gave_up("it returns no prompt for a chat")
        return prompt

    # -- calls -------------------------------------------------------------------

    def _ask(self, path: str, body: dict[str, Any]) -> tuple[int, Mapping[str, Any]]:
        if self._clock() < self._closed_until:
            raise TokenizerUnavailable("the engine does not answer")
        if self._model is not None:
            body["model"] = self._model
        client, error = self._client(), ""
        for _ in range(2):  # an idle connection may just have been closed
            try:
                response = client.post(split_url(self._endpoint.url).root + path, json=body)
                reply = response.json() if response.status_code == 200 else {}
                return response.status_code, reply if isinstance(reply, dict) else {}
            except Exception as caught:  # noqa: BLE001 - of network, JSON or a surrogate
                error = type(caught).__name__
                if error not in ("RemoteProtocolError", "ReadError", "WriteError"):
                    break
        raise self._gave_up(f"a call to {self._endpoint.id} failed ({error})")

    def _gave_up(self, why: str) -> TokenizerUnavailable:
        self._closed_until = self._clock() + self._retry_after_s
        return TokenizerUnavailable(f"{why}; it is left alone for {self._retry_after_s:g} s")

    def _client(self) -> httpx.Client:
        client = self._clients.get(os.getpid())
        return client or self._clients.setdefault(os.getpid(), self._new_client())

    def _new_client(self) -> httpx.Client:
        import httpx  # noqa: PLC0415 - only who asks an engine needs it

        parts, endpoint = split_url(self._endpoint.url), self._endpoint
        headers = dict(endpoint.headers)
        key = endpoint.api_key() if callable(endpoint.api_key) else endpoint.api_key
        if key is not None:
            headers[endpoint.auth_header or "Authorization"] = (
                f"Bearer {key}" if endpoint.auth_header in (None, "Authorization") else key
            )
        return httpx.Client(
            base_url=f"{parts.scheme}://{parts.netloc}",
            headers=headers,
            timeout=self._timeout_s,
            limits=httpx.Limits(keepalive_expiry=_IDLE_S),
            transport=self._transport,
        )

    def close(self) -> None:
        """Close the connections; it opens new ones if it is used again."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _refusal(status: int) -> ValueError:
    return ValueError(f"the engine refuses the chat with {status}")
