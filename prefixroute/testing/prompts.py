"""Requests rendered the way a chat template would: the text that an engine sees."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import shake_128

from prefixroute.testing.engine import RenderedPrompt
from prefixroute.testing.wire import RequestError

__all__ = [
    "chat_prompt",
    "completion_prompts",
    "content_bytes",
    "encode",
    "messages_prompt",
    "prompt_salt",
    "response_prompt",
    "tool_call_bytes",
    "turn",
    "turns_of_input",
]

_MEDIA_BYTES = 1024
_GENERATE = b"<|im_start|>assistant\n"
_SALT_FIELDS = ("cache_salt", "chat_template", "chat_template_kwargs")


def chat_prompt(body: Mapping[str, object]) -> RenderedPrompt:
    """Render the messages and tools of `/v1/chat/completions`.

    Raises:
        RequestError: There are no messages, or one of them isn't an object.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError(400, "messages must be a list of at least one message", "messages")
    turns = b"".join(_message(message) for message in messages)
    return RenderedPrompt(text=_tools(body) + turns + _GENERATE, salt=prompt_salt(body))


def messages_prompt(body: Mapping[str, object]) -> RenderedPrompt:
    """Render the system prompt, messages and tools of Anthropic's `/v1/messages`.

    Raises:
        RequestError: As for `chat_prompt`.
    """
    system = body.get("system")
    first = turn("system", content_bytes(system)) if system else b""
    prompt = chat_prompt({**body, "tools": None})
    return RenderedPrompt(text=_tools(body) + first + prompt.text, salt=prompt.salt)


def turns_of_input(body: Mapping[str, object]) -> bytes:
    """Render the input of `/v1/responses`, without tools and instructions.

    Raises:
        RequestError: There is no input.
    """
    match body.get("input"):
        case str(text):
            return turn("user", encode(text))
        case list(items) if items:
            return b"".join(_item(item) for item in items)
        case _:
            raise RequestError(400, "input must be a string or a list of items", "input")


def response_prompt(body: Mapping[str, object], history: bytes) -> RenderedPrompt:
    """Render a request to `/v1/responses`.

    Args:
        body: The request; its instructions and tools come first.
        history: The rendered turns, those of earlier responses included.
    """
    instructions = body.get("instructions")
    first = turn("system", content_bytes(instructions)) if instructions else b""
    return RenderedPrompt(text=_tools(body) + first + history + _GENERATE, salt=prompt_salt(body))


def completion_prompts(prompt: object, salt: bytes, token_bytes: int) -> list[RenderedPrompt]:
    """Render the prompts of `/v1/completions` (or the input of `/v1/embeddings`).

    Args:
        prompt: A string, a list of strings, token ids, or a list of lists of token ids.
        salt: See `RenderedPrompt`.
        token_bytes: How many bytes one token is.

    Raises:
        RequestError: It is none of these, or empty.
    """
    match prompt:
        case str(text):
            texts = [encode(text)]
        case [int(), *_]:
            texts = [_token_ids(prompt, token_bytes)]
        case [str() | list(), *_]:
            texts = [_text_or_ids(one, token_bytes) for one in prompt]
        case _:
            raise RequestError(400, "prompt must be a string, token ids, or a list of these")
    if not all(texts):
        raise RequestError(400, "a prompt must not be empty", "prompt")
    return [RenderedPrompt(text=text, salt=salt) for text in texts]


def prompt_salt(body: Mapping[str, object]) -> bytes:
    """What tells cached prefixes apart besides their text."""
    fields = [body.get("model"), *(body.get(name) for name in _SALT_FIELDS)]
    return encode(json.dumps(fields, sort_keys=True))


def turn(role: str, content: bytes) -> bytes:
    """Render one turn of a conversation."""
    return b"<|im_start|>" + encode(role) + b"\n" + content + b"<|im_end|>\n"


def tool_call_bytes(name: object, arguments: object) -> bytes:
    """Render a tool call of the assistant.

    Args:
        name: The tool.
        arguments: JSON text, or the value that it stands for.
    """
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return encode(f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {text}}}\n</tool_call>')


def content_bytes(content: object) -> bytes:
    """Render the content of a message: text, parts or nothing.

    Raises:
        RequestError: It is something else.
    """
    match content:
        case None:
            return b""
        case str():
            return encode(content)
        case list():
            return b"".join(_part(part) for part in content)
        case dict():
            return _part(content)
        case _:
            raise RequestError(400, "content must be a string or a list of parts", "messages")


def encode(text: str) -> bytes:
    """UTF-8, also for the lone surrogates that JSON can carry."""
    return text.encode("utf-8", "surrogatepass")


def _message(message: object) -> bytes:
    if not isinstance(message, dict):
        raise RequestError(400, "every message must be an object", "messages")
    content = content_bytes(message.get("content"))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            content += tool_call_bytes(function.get("name"), function.get("arguments"))
    return turn(str(message.get("role", "user")), content)


def _part(part: object) -> bytes:
    match part:
        case str():
            return encode(part)
        case {"type": "tool_use", "name": name, "input": arguments}:
            return tool_call_bytes(name, arguments)
        case {"type": "tool_result", **fields}:
            output = content_bytes(fields.get("content"))
            return b"<tool_response>\n" + output + b"\n</tool_response>"
        case {"type": "thinking" | "redacted_thinking"}:
            return b""
        case {"text": str(text)}:
            return encode(text)
        case _:
            # An image or a sound takes a fixed number of tokens, which are those of its content.
            digest = shake_128(encode(json.dumps(part, sort_keys=True)))
            return b"<|media|>" + digest.digest(_MEDIA_BYTES)


def _item(item: object) -> bytes:
    match item:
        case {"type": "function_call", **fields}:
            call = tool_call_bytes(fields.get("name"), fields.get("arguments"))
            return turn("assistant", call)
        case {"type": "function_call_output", **fields}:
            return turn("tool", content_bytes(fields.get("output")))
        case {"type": "reasoning"}:
            return b""
        case _:
            return _message(item)


def _tools(body: Mapping[str, object]) -> bytes:
    tools = body.get("tools")
    if not tools:
        return b""
    return turn("system", b"# Tools\n\n" + encode(json.dumps(tools, ensure_ascii=False)))


def _text_or_ids(prompt: object, token_bytes: int) -> bytes:
    return encode(prompt) if isinstance(prompt, str) else _token_ids(prompt, token_bytes)


def _token_ids(ids: object, token_bytes: int) -> bytes:
    if not isinstance(ids, Sequence) or not all(type(one) is int and one >= 0 for one in ids):
        raise RequestError(400, "token ids must be whole numbers, not negative", "prompt")
    limit = 256**token_bytes
    return b"".join((one % limit).to_bytes(token_bytes, "little") for one in ids)
