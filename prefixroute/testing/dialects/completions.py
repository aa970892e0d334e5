"""`/v1/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prefixroute.testing.answers import Finish, WriteText
from prefixroute.testing.dialects.chat import completion_usage, include_usage
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
    openai_error,
    openai_error_event,
    sse,
    text_framer,
)
from prefixroute.testing.prompts import completion_prompts, prompt_salt

__all__ = ["COMPLETIONS"]


def _parse(body: Mapping[str, object], context: Context) -> Job:
    prompts = completion_prompts(
        body.get("prompt"), prompt_salt(body), context.model.bytes_per_token
    )
    return Job(
        model_name=model_name(body, context.model),
        prompts=tuple(prompts),
        choices=count_field(body, "n") or 1,
        task=WriteText(),
        limits=limits_of(body, "max_tokens"),
        stream=body.get("stream") is True,
        include_usage=include_usage(body),
    )


def _envelope(generation: Generation) -> dict[str, object]:
    return {
        "id": f"cmpl-{generation.serial}",
        "object": "text_completion",
        "created": generation.created,
        "model": generation.job.model_name,
        "system_fingerprint": generation.fingerprint,
    }


def _choice(choice: Choice, text: str, finish: Finish | None) -> dict[str, object]:
    return {
        "index": choice.index,
        "text": text,
        "logprobs": None,
        "finish_reason": None if finish is None else finish.value,
    }


def _document(generation: Generation) -> bytes:
    choices = [
        _choice(choice, choice.answer.text, choice.answer.finish) for choice in generation.choices
    ]
    usage = completion_usage(generation)
    return dumps({**_envelope(generation), "choices": choices, "usage": usage}).encode()


def _events(generation: Generation) -> Iterator[Event]:
    yield from in_order(_choice_events(generation, choice) for choice in generation.choices)
    done_at_s = generation.done_at_s
    if generation.job.include_usage:
        usage = completion_usage(generation)
        yield done_at_s, sse({**_envelope(generation), "choices": [], "usage": usage})
    yield done_at_s, b"data: [DONE]\n\n"


def _choice_events(generation: Generation, choice: Choice) -> Iterator[Event]:
    envelope = _envelope(generation)
    frame = text_framer(lambda text: sse({**envelope, "choices": [_choice(choice, text, None)]}))
    for tokens, piece in choice.answer.pieces:
        yield choice.admission.token_at_s(tokens), frame(piece)
    last = _choice(choice, "", choice.answer.finish)
    yield choice.admission.done_at_s, sse({**envelope, "choices": [last]})


COMPLETIONS = Dialect(
    parse=_parse,
    document=_document,
    events=_events,
    error=openai_error,
    error_event=openai_error_event,
)
