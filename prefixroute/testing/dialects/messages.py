"""Anthropic's `/v1/messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from prefixroute.testing.answers import CallTool, Finish, Task, WriteJson, WriteText
from prefixroute.testing.dialects.common import (
    Context,
    Dialect,
    Event,
    Generation,
    Job,
    dumps,
    limits_of,
    model_name,
    objects,
    sse,
    text_framer,
)
from prefixroute.testing.prompts import messages_prompt
from prefixroute.testing.wire import RequestError

__all__ = ["MESSAGES"]

_FINISH = {Finish.STOP: "end_turn", Finish.LENGTH: "max_tokens", Finish.TOOL: "tool_use"}
_ERRORS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def _parse(body: Mapping[str, object], context: Context) -> Job:
    limits = limits_of(body, "max_tokens")
    if limits.most_tokens is None:
        raise RequestError(400, "max_tokens: Field required", "max_tokens")
    return Job(
        model_name=model_name(body, context.model),
        prompts=(messages_prompt(body),),
        task=_task(body),
        limits=limits,
        stream=body.get("stream") is True,
        include_usage=True,
    )


def _task(body: Mapping[str, object]) -> Task:
    tools = objects(body.get("tools"))
    match body.get("tool_choice"):
        case {"type": "any"}:
            return _call(tools, None)
        case {"type": "tool", "name": name}:
            return _call(tools, name)
    match body:
        case {"output_config": {"format": {"type": "json_schema", "schema": schema}}}:
            return WriteJson(schema=schema)
        case {"output_format": {"type": "json_schema", "schema": schema}}:
            return WriteJson(schema=schema)
    return WriteText()


def _call(tools: list[dict[str, object]], name: object) -> Task:
    for tool in tools:
        if name is None or tool.get("name") == name:
            return CallTool(name=str(tool.get("name")), schema=tool.get("input_schema"))
    raise RequestError(400, "tool_choice asks for a tool that isn't in tools", "tool_choice")


def _usage(generation: Generation, output_tokens: int) -> dict[str, object]:
    if not generation.reports_cached_tokens:
        return {"input_tokens": generation.prompt_tokens, "output_tokens": output_tokens}
    return {
        "input_tokens": generation.prompt_tokens - generation.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": generation.cached_tokens,
        "output_tokens": output_tokens,
    }


def _message(
    generation: Generation, content: list[object], finish: str | None, output_tokens: int
) -> dict[str, object]:
    return {
        "id": f"msg_{generation.serial}",
        "type": "message",
        "role": "assistant",
        "model": generation.job.model_name,
        "content": content,
        "stop_reason": finish,
        "stop_sequence": None,
        "usage": _usage(generation, output_tokens),
    }


def _tool_use(generation: Generation, arguments: object) -> dict[str, object]:
    return {
        "type": "tool_use",
        "id": f"toolu_{generation.serial}",
        "name": generation.choices[0].answer.tool,
        "input": arguments,
    }


def _document(generation: Generation) -> bytes:
    answer = generation.choices[0].answer
    block: dict[str, object] = {"type": "text", "text": answer.text}
    if answer.tool is not None:
        block = _tool_use(generation, _arguments(answer.text))
    finish = _FINISH[answer.finish]
    return dumps(_message(generation, [block], finish, generation.completion_tokens)).encode()


def _arguments(text: str) -> object:
    try:
        arguments: object = json.loads(text)
    except ValueError:
        return {}
    return arguments


def _events(generation: Generation) -> Iterator[Event]:
    choice = generation.choices[0]
    answer, admission = choice.answer, choice.admission
    first_at_s, done_at_s = admission.first_token_at_s, admission.done_at_s
    block: dict[str, object] = {"type": "text", "text": ""}
    delta_type, field = "text_delta", "text"
    if answer.tool is not None:
        block = _tool_use(generation, {})
        delta_type, field = "input_json_delta", "partial_json"

    def delta(text: str) -> bytes:
        return _event("content_block_delta", index=0, delta={"type": delta_type, field: text})

    yield first_at_s, _event("message_start", message=_message(generation, [], None, 1))
    yield first_at_s, _event("content_block_start", index=0, content_block=block)
    yield first_at_s, _event("ping")
    frame = text_framer(delta)
    for tokens, piece in answer.pieces:
        yield admission.token_at_s(tokens), frame(piece)
    yield done_at_s, _event("content_block_stop", index=0)
    ending = {"stop_reason": _FINISH[answer.finish], "stop_sequence": None}
    usage = _usage(generation, generation.completion_tokens)
    yield done_at_s, _event("message_delta", delta=ending, usage=usage)
    yield done_at_s, _event("message_stop")


def _event(name: str, **fields: object) -> bytes:
    return sse({"type": name, **fields}, event=name)


def _error(error: RequestError) -> bytes:
    kind = _ERRORS.get(error.status, "api_error" if error.status >= 500 else _BAD_REQUEST)
    return dumps({"type": "error", "error": {"type": kind, "message": error.message}}).encode()


def _error_event(message: str) -> bytes:
    return b"event: error\ndata: " + _error(RequestError(529, message)) + b"\n\n"


_BAD_REQUEST = "invalid_request_error"

MESSAGES = Dialect(
    parse=_parse, document=_document, events=_events, error=_error, error_event=_error_event
)
