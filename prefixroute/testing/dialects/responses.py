"""`/v1/responses`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from prefixroute.testing.answers import Answer, CallTool, Finish, Task, WriteJson, WriteText
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
    openai_error,
    sse,
)
from prefixroute.testing.engine import Admission
from prefixroute.testing.prompts import response_prompt, turns_of_input
from prefixroute.testing.wire import RequestError

__all__ = ["RESPONSES"]

_Fields = Mapping[str, object]
_Step = tuple[float, str, _Fields]
_NO_PROBS: _Fields = MappingProxyType({"logprobs": []})


def _parse(body: Mapping[str, object], context: Context) -> Job:
    previous_id = body.get("previous_response_id")
    history = turns_of_input(body)
    if isinstance(previous_id, str):
        earlier = context.recall(previous_id)
        if earlier is None:
            message = f"Previous response with id '{previous_id}' not found."
            raise RequestError(404, message, "previous_response_id")
        history = earlier + history
    return Job(
        model_name=model_name(body, context.model),
        prompts=(response_prompt(body, history),),
        task=_task(body),
        limits=limits_of(body, "max_output_tokens"),
        stream=body.get("stream") is True,
        include_usage=True,
        history=None if body.get("store") is False else history,
        previous_id=previous_id if isinstance(previous_id, str) else None,
    )


def _task(body: Mapping[str, object]) -> Task:
    tools = objects(body.get("tools"))
    match body.get("tool_choice"):
        case "required":
            return _call(tools, None)
        case {"type": "function", "name": name}:
            return _call(tools, name)
    match body.get("text"):
        case {"format": {"type": "json_schema", "schema": schema}}:
            return WriteJson(schema=schema)
        case {"format": {"type": "json_object"}}:
            return WriteJson(schema={})
    return WriteText()


def _call(tools: list[dict[str, object]], name: object) -> Task:
    for tool in tools:
        if tool.get("type") == "function" and (name is None or tool.get("name") == name):
            return CallTool(name=str(tool.get("name")), schema=tool.get("parameters"))
    raise RequestError(400, "tool_choice asks for a tool that isn't in tools", "tool_choice")


def _response(generation: Generation, status: str, output: list[object]) -> dict[str, object]:
    is_over = status != "in_progress"
    is_cut = status == "incomplete"
    return {
        "id": f"resp_{generation.serial}",
        "object": "response",
        "created_at": generation.created,
        "status": status,
        "model": generation.job.model_name,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": None,
        "metadata": {},
        "previous_response_id": generation.job.previous_id,
        "temperature": 1.0,
        "top_p": 1.0,
        "usage": _usage(generation) if is_over else None,
    }


def _usage(generation: Generation) -> dict[str, object]:
    cached = {"cached_tokens": generation.cached_tokens, "cache_write_tokens": 0}
    return {
        "input_tokens": generation.prompt_tokens,
        "input_tokens_details": cached if generation.reports_cached_tokens else None,
        "output_tokens": generation.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": generation.prompt_tokens + generation.completion_tokens,
    }


def _text_part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(generation: Generation, status: str, text: str | None) -> dict[str, object]:
    """The one item of the output; `text` None is a message that has no content yet."""
    tool = generation.choices[0].answer.tool
    if tool is None:
        return {
            "id": f"msg_{generation.serial}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if text is None else [_text_part(text)],
        }
    return {
        "id": f"fc_{generation.serial}",
        "type": "function_call",
        "call_id": f"call_{generation.serial}",
        "name": tool,
        "arguments": text or "",
        "status": status,
    }


def _status(generation: Generation) -> str:
    is_cut = generation.choices[0].answer.finish is Finish.LENGTH
    return "incomplete" if is_cut else "completed"


def _document(generation: Generation) -> bytes:
    status = _status(generation)
    item = _item(generation, status, generation.choices[0].answer.text)
    return dumps(_response(generation, status, [item])).encode()


def _events(generation: Generation) -> Iterator[Event]:
    for number, (at_s, kind, fields) in enumerate(_steps(generation)):
        yield at_s, sse({"type": kind, "sequence_number": number, **fields}, event=kind)


def _steps(generation: Generation) -> Iterator[_Step]:
    began = {"response": _response(generation, "in_progress", [])}
    yield generation.began_at_s, "response.created", began
    yield generation.began_at_s, "response.in_progress", began

    answer, admission = generation.choices[0].answer, generation.choices[0].admission
    item = _item(generation, "in_progress", None)
    added = {"output_index": 0, "item": item}
    yield admission.first_token_at_s, "response.output_item.added", added
    place = {"item_id": item["id"], "output_index": 0}
    if answer.tool is None:
        yield from _text_steps(answer, admission, {**place, "content_index": 0})
    else:
        yield from _call_steps(answer, admission, place)

    status, done_at_s = _status(generation), admission.done_at_s
    done = _item(generation, status, answer.text)
    yield done_at_s, "response.output_item.done", {"output_index": 0, "item": done}
    yield done_at_s, f"response.{status}", {"response": _response(generation, status, [done])}


def _text_steps(answer: Answer, admission: Admission, place: _Fields) -> Iterator[_Step]:
    kind, done_at_s = "response.output_text", admission.done_at_s
    empty = {"part": _text_part(""), **place}
    yield admission.first_token_at_s, "response.content_part.added", empty
    for tokens, piece in answer.pieces:
        yield admission.token_at_s(tokens), f"{kind}.delta", {**place, "delta": piece, **_NO_PROBS}
    yield done_at_s, f"{kind}.done", {**place, "text": answer.text, **_NO_PROBS}
    yield done_at_s, "response.content_part.done", {"part": _text_part(answer.text), **place}


def _call_steps(answer: Answer, admission: Admission, place: _Fields) -> Iterator[_Step]:
    kind = "response.function_call_arguments"
    for tokens, piece in answer.pieces:
        yield admission.token_at_s(tokens), f"{kind}.delta", {**place, "delta": piece}
    done = {**place, "name": answer.tool, "arguments": answer.text}
    yield admission.done_at_s, f"{kind}.done", done


def _error_event(message: str) -> bytes:
    fields = {"type": "error", "code": "server_error", "message": message, "param": None}
    return sse({**fields, "sequence_number": 0, "error": {"message": message}}, event="error")


RESPONSES = Dialect(
    parse=_parse,
    document=_document,
    events=_events,
    error=openai_error,
    error_event=_error_event,
)
