"""What the APIs of an engine have in common: a job, its generation, usage, and events."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

from prefixroute.testing.answers import Answer, Limits, Task
from prefixroute.testing.engine import Admission, RenderedPrompt
from prefixroute.testing.model import EngineModel
from prefixroute.testing.wire import RequestError

__all__ = [
    "Choice",
    "Context",
    "Dialect",
    "Event",
    "Generation",
    "Job",
    "count_field",
    "dumps",
    "in_order",
    "limits_of",
    "model_name",
    "objects",
    "openai_error",
    "openai_error_event",
    "sse",
    "text_framer",
]

Event = tuple[float, bytes]
"""When a piece of a stream is sent, in simulated seconds, and its bytes."""

_ENCODER = json.JSONEncoder(separators=(",", ":"))
_MARK = "\N{DIGIT ONE}-piece-\N{DIGIT ONE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What parsing a request needs to know about the engine.

    Attributes:
        model: The engine.
        recall: Gives the rendered turns of an earlier response, or None.
    """

    model: EngineModel
    recall: Callable[[str], bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a request asks for.

    Attributes:
        model_name: As in the request, and in the reply.
        prompts: At least one.
        choices: Answers to each prompt.
        task: What kind of answer.
        limits: How long it may be.
        stream: Reply with events.
        include_usage: Let the last event of a stream carry usage.
        history: Rendered turns up to the answer, where the engine shall remember them.
        previous_id: The response that this one continues.
    """

    model_name: str
    prompts: tuple[RenderedPrompt, ...]
    choices: int = 1
    task: Task
    limits: Limits
    stream: bool
    include_usage: bool = False
    history: bytes | None = None
    previous_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer, and when its tokens are out."""

    index: int
    answer: Answer
    admission: Admission


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A job that was admitted.

    Attributes:
        serial: Unique among all replies of the cluster, safe in an id.
        created: Unix time of the reply, seconds.
        began_at_s: When it was admitted, simulated seconds.
        fingerprint: Names the replica.
        job: What was asked for.
        choices: All answers.
        admissions: One for each prompt.
        reports_cached_tokens: Whether usage says how many tokens were cached.
    """

    serial: str
    created: int
    began_at_s: float
    fingerprint: str
    job: Job
    choices: tuple[Choice, ...]
    admissions: tuple[Admission, ...]
    reports_cached_tokens: bool

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(admission.prompt_tokens for admission in self.admissions)

    @property
    def cached_tokens(self) -> int:
        """How many of them came from the prefix cache."""
        return sum(admission.cached_tokens for admission in self.admissions)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(admission.completion_tokens for admission in self.admissions)

    @property
    def done_at_s(self) -> float:
        """When the last token is out, simulated seconds."""
        return max(admission.done_at_s for admission in self.admissions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One generating API: how its requests are read and its replies are written.

    Attributes:
        parse: Reads a request's body; raises RequestError.
        document: The reply as one JSON document.
        events: The reply as a stream, in order of time.
        error: The body of an error, from status and RequestError.
        error_event: An error as an event of a stream, from a message.
    """

    parse: Callable[[Mapping[str, object], Context], Job]
    document: Callable[[Generation], bytes]
    events: Callable[[Generation], Iterator[Event]]
    error: Callable[[RequestError], bytes]
    error_event: Callable[[str], bytes]


def dumps(value: object) -> str:
    """Compact JSON."""
    return _ENCODER.encode(value)


def sse(data: object, event: str | None = None) -> bytes:
    """One server-sent event."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {dumps(data)}\n\n".encode()


def text_framer(frame: Callable[[str], bytes]) -> Callable[[str], bytes]:
    """Make a fast version of a function that puts a text into an event: encode the rest once.

    Args:
        frame: Builds the event of a text, in which the text occurs once, as a JSON string, after
            anything that the caller of the API can choose.
    """
    before, _, after = frame(_MARK).rpartition(dumps(_MARK).encode())
    return lambda text: before + dumps(text).encode() + after


def in_order(streams: Iterable[Iterator[Event]]) -> Iterator[Event]:
    """Merge the events of several choices by time."""
    streams = list(streams)
    if len(streams) == 1:
        return streams[0]
    return heapq.merge(*streams, key=itemgetter(0))


def openai_error(error: RequestError) -> bytes:
    """An error in OpenAI's shape."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(error.status, "server_error" if error.status >= 500 else "invalid_request")
    fields = {
        "message": error.message,
        "type": kind,
        "param": error.param,
        "code": error.status,
    }
    return dumps({"error": fields}).encode()


def openai_error_event(message: str) -> bytes:
    """An error as an event of OpenAI's streams."""
    return b"data: " + openai_error(RequestError(500, message)) + b"\n\n"


def count_field(body: Mapping[str, object], *names: str, least: int = 1) -> int | None:
    """The first of some fields that is there and not null.

    Raises:
        RequestError: It isn't a whole number, or below `least`.
    """
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if type(value) is not int or value < least:
            raise RequestError(400, f"{name} must be a whole number, at least {least}", name)
        return value
    return None


def limits_of(body: Mapping[str, object], *names: str) -> Limits:
    """Read the limits of an answer's length.

    Args:
        body: The request.
        names: The fields that may hold the greatest length, the first that is there counts.
    """
    most = count_field(body, *names)
    least = count_field(body, "min_tokens", least=0) or 0
    if most is not None and least > most:
        raise RequestError(400, "min_tokens must not be above max_tokens", "min_tokens")
    return Limits(most_tokens=most, least_tokens=least, ignore_eos=body.get("ignore_eos") is True)


def objects(value: object) -> list[dict[str, object]]:
    """The JSON objects in a JSON array; none if it isn't an array."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def model_name(body: Mapping[str, object], model: EngineModel) -> str:
    """The model that a request names, or the engine's first.

    Raises:
        RequestError: The engine is strict and doesn't serve it.
    """
    name = body.get("model")
    if not isinstance(name, str) or not name:
        return model.names[0]
    if model.strict_names and name not in model.names:
        raise RequestError(404, f"The model `{name}` does not exist.", "model")
    return name
