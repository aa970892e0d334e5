"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prefixroute.testing.answers import CallTool, Finish, Task, WriteJson, WriteText
from prefixroute.testing.dialects.common import (
    Choice,
    Context,
    Dialect,
    Event,
    Generation,
    Job,
    count_field,
    dumps,
    in_order,
    limits_of,
    model_name,
    objects,
    openai_error,
    openai_error_event,
    sse,
    text_framer,
)
from prefixroute.testing.prompts import chat_prompt
from prefixroute.testing.wire import RequestError

__all__ = ["CHAT", "completion_usage", "include_usage"]

_FINISH = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.TOOL: "tool_calls"}


def include_usage(body: Mapping[str, object]) -> bool:
    """Whether `stream_options` asks for a last event with usage."""
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def completion_usage(generation: Generation) -> dict[str, object]:
    """`usage` of chat and text completions."""
    cached = {"cached_tokens": generation.cached_tokens}
    return {
        "prompt_tokens": generation.prompt_tokens,
        "total_tokens": generation.prompt_tokens + generation.completion_tokens,
        "completion_tokens": generation.completion_tokens,
        "prompt_tokens_details": cached if generation.reports_cached_tokens else None,
    }


def _parse(body: Mapping[str, object], context: Context) -> Job:
    return Job(
        model_name=model_name(body, context.model),
        prompts=(chat_prompt(body),),
        choices=count_field(body, "n") or 1,
        task=_task(body),
        limits=limits_of(body, "max_completion_tokens", "max_tokens"),
        stream=body.get("stream") is True,
        include_usage=include_usage(body),
    )


def _task(body: Mapping[str, object]) -> Task:
    functions = objects([tool.get("function") for tool in objects(body.get("tools"))])
    match body.get("tool_choice"):
        case "required":
            return _call(functions, None)
        case {"function": {"name": name}}:
            return _call(functions, name)
    match body.get("response_format"):
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return WriteJson(schema=schema)
        case {"type": "json_object"}:
            return WriteJson(schema={})
    return WriteText()


def _call(functions: list[dict[str, object]], name: object) -> Task:
    for function in functions:
        if name is None or function.get("name") == name:
            return CallTool(name=str(function.get("name")), schema=function.get("parameters"))
    raise RequestError(400, "tool_choice asks for a tool that isn't in tools", "tool_choice")


def _envelope(generation: Generation, kind: str) -> dict[str, object]:
    return {
        "id": f"chatcmpl-{generation.serial}",
        "object": kind,
        "created": generation.created,
        "model": generation.job.model_name,
        "system_fingerprint": generation.fingerprint,
    }


def _tool_call(generation: Generation, choice: Choice, arguments: str) -> dict[str, object]:
    return {
        "id": f"call_{generation.serial}_{choice.index}",
        "type": "function",
        "function": {"name": choice.answer.tool, "arguments": arguments},
    }


def _document(generation: Generation) -> bytes:
    choices = []
    for choice in generation.choices:
        answer = choice.answer
        message: dict[str, object] = {"role": "assistant", "content": answer.text}
        if answer.tool is not None:
            calls = [_tool_call(generation, choice, answer.text)]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        choices.append(
            {
                "index": choice.index,
                "message": message,
                "logprobs": None,
                "finish_reason": _FINISH[answer.finish],
            }
        )
    reply = _envelope(generation, "chat.completion")
    return dumps({**reply, "choices": choices, "usage": completion_usage(generation)}).encode()


def _events(generation: Generation) -> Iterator[Event]:
    yield from in_order(_choice_events(generation, choice) for choice in generation.choices)
    done_at_s = generation.done_at_s
    if generation.job.include_usage:
        last = _envelope(generation, "chat.completion.chunk")
        yield done_at_s, sse({**last, "choices": [], "usage": completion_usage(generation)})
    yield done_at_s, b"data: [DONE]\n\n"


def _choice_events(generation: Generation, choice: Choice) -> Iterator[Event]:
    envelope = _envelope(generation, "chat.completion.chunk")
    answer, admission = choice.answer, choice.admission

    def chunk(delta: Mapping[str, object], finish: str | None = None) -> bytes:
        fields = {
            "index": choice.index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish,
        }
        return sse({**envelope, "choices": [fields]})

    yield admission.first_token_at_s, chunk({"role": "assistant", "content": ""})
    if answer.tool is None:
        frame = text_framer(lambda text: chunk({"content": text}))
    else:
        call = {"index": 0, **_tool_call(generation, choice, "")}
        yield admission.first_token_at_s, chunk({"tool_calls": [call]})
        frame = text_framer(
            lambda text: chunk({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})
        )
    for tokens, piece in answer.pieces:
        yield admission.token_at_s(tokens), frame(piece)
    yield admission.done_at_s, chunk({}, _FINISH[answer.finish])


CHAT = Dialect(
    parse=_parse,
    document=_document,
    events=_events,
    error=openai_error,
    error_event=openai_error_event,
)
