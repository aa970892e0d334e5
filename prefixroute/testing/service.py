"""The HTTP API of one healthy simulated engine, without any I/O: requests become scripts."""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from prefixroute.testing import operations
from prefixroute.testing.answers import write_answer
from prefixroute.testing.clock import Clock
from prefixroute.testing.dialects import DIALECTS
from prefixroute.testing.dialects.common import (
    Choice,
    Context,
    Dialect,
    Generation,
    openai_error,
)
from prefixroute.testing.engine import Admission, Engine, RenderedPrompt
from prefixroute.testing.prompts import turn
from prefixroute.testing.wire import Data, Head, ReceivedRequest, RequestError, Script, Wait

__all__ = ["EMBEDDINGS_PATH", "Service", "error_body", "error_event", "reply"]

EMBEDDINGS_PATH = "/v1/embeddings"
_BODILESS = (204, 304)
_EPOCH_S = 1_767_225_600
_MAX_REMEMBERED = 10_000
_JSON = "application/json"
_EVENTS = (("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"))
_METHODS = {
    "/health": "GET",
    "/metrics": "GET",
    "/v1/models": "GET",
    "/tokenize": "POST",
    "/v1/messages/count_tokens": "POST",
    EMBEDDINGS_PATH: "POST",
    **dict.fromkeys(DIALECTS, "POST"),
}


def reply(
    at_s: float,
    status: int,
    body: bytes,
    content_type: str = _JSON,
    headers: Iterable[tuple[str, str]] = (),
) -> Script:
    """Send a whole reply at a simulated time; without the body where HTTP allows none."""
    if status in _BODILESS:
        yield Head(at_s, status, (("content-length", "0"), *headers))
        return
    length = ("content-length", str(len(body)))
    yield Head(at_s, status, (("content-type", content_type), length, *headers))
    if body:
        yield Data(at_s, body)


def error_body(path: str, error: RequestError) -> bytes:
    """An error in the shape of the API that a path belongs to."""
    if path.startswith("/v1/messages"):
        return DIALECTS["/v1/messages"].error(error)
    return openai_error(error)


def error_event(path: str, message: str) -> bytes:
    """An error as an event of the API that a path belongs to."""
    return DIALECTS.get(path, DIALECTS["/v1/chat/completions"]).error_event(message)


class Service:
    """What one engine answers while nothing is wrong with it."""

    def __init__(self, *, index: int, engine: Engine, clock: Clock, seed: int) -> None:
        """Put an HTTP API in front of an engine.

        Args:
            index: The replica's, for ids and fingerprints.
            engine: What computes.
            clock: Tells the simulated time.
            seed: Chooses the words of answers, and is part of ids.
        """
        self._index = index
        self._engine = engine
        self._model = engine.model
        self._clock = clock
        self._seed = seed
        self._serials = itertools.count()
        self._turns: OrderedDict[str, bytes] = OrderedDict()

    def answer(self, request: ReceivedRequest) -> Script:
        """Answer one request. Closing the script early cancels what it asked for."""
        path = request.path
        try:
            self._check(request)
            dialect = DIALECTS.get(path)
            if dialect is None:
                yield from self._operate(request)
                return
            generation = self._begin(dialect, _json_object(request))
        except RequestError as error:
            yield from reply(self._clock.now_s(), error.status, error_body(path, error))
            return
        yield from self._deliver(dialect, generation, request)

    def _check(self, request: ReceivedRequest) -> None:
        method = _METHODS.get(request.path)
        if method is None:
            raise RequestError(404, f"Not Found: {request.path}")
        if request.method != method:
            raise RequestError(405, f"Method Not Allowed: use {method}")
        key = self._model.api_key
        if key is None or not request.path.startswith("/v1/"):
            return
        given = (request.header("authorization") or "").removeprefix("Bearer ")
        if key not in (given, request.header("x-api-key")):
            raise RequestError(401, "Unauthorized: the API key is missing or wrong")

    def _operate(self, request: ReceivedRequest) -> Script:
        now_s, model = self._clock.now_s(), self._model
        match request.path:
            case "/health":
                yield from reply(now_s, 200, b"")
            case "/metrics":
                text = operations.metrics_text(self._engine.stats(now_s), model)
                yield from reply(now_s, 200, text, "text/plain; version=0.0.4; charset=utf-8")
            case "/v1/models":
                yield from reply(now_s, 200, operations.models_document(model, _EPOCH_S))
            case "/tokenize":
                body = _json_object(request)
                yield from reply(now_s, 200, operations.tokenize_document(body, model))
            case "/v1/messages/count_tokens":
                body = _json_object(request)
                yield from reply(now_s, 200, operations.count_tokens_document(body, model))
            case _:
                yield from self._embed(_json_object(request))

    def _embed(self, body: Mapping[str, object]) -> Script:
        prompts = operations.embedding_prompts(body, self._model)
        for prompt in prompts:
            self._check_length(prompt, None)
        admissions = [self._engine.admit(one, now_s=self._clock.now_s()) for one in prompts]
        is_over = False
        try:
            yield Wait(max(admission.done_at_s for admission in admissions))
            is_over = True
        finally:
            if not is_over:
                self._cancel(admissions)
        text = operations.embeddings_document(body, prompts, admissions, self._model)
        yield from reply(self._clock.now_s(), 200, text)

    def _begin(self, dialect: Dialect, body: Mapping[str, object]) -> Generation:
        """Read a request, write its answers and put its prompts into the engine's queue."""
        model = self._model
        job = dialect.parse(body, Context(model=model, recall=self._turns.get))
        for prompt in job.prompts:
            self._check_length(prompt, job.limits.most_tokens)
        now_s = self._clock.now_s()
        choices: list[Choice] = []
        admissions: list[Admission] = []
        for prompt in job.prompts:
            room = model.context_tokens - model.tokens_of(prompt.text)
            limits = replace(job.limits, least_tokens=min(room, job.limits.least_tokens))
            answer = write_answer(prompt, job.task, limits, model, self._seed)
            admission = self._engine.admit(
                prompt, output=answer.rendered, choices=job.choices, now_s=now_s
            )
            admissions.append(admission)
            for _ in range(job.choices):
                choices.append(Choice(index=len(choices), answer=answer, admission=admission))
        return Generation(
            serial=f"{self._seed:x}-{self._index}-{next(self._serials)}",
            created=_EPOCH_S + int(now_s),
            began_at_s=now_s,
            fingerprint=f"replica-{self._index}",
            job=job,
            choices=tuple(choices),
            admissions=tuple(admissions),
            reports_cached_tokens=model.reports_cached_tokens,
        )

    def _check_length(self, prompt: RenderedPrompt, most_tokens: int | None) -> None:
        limit = self._model.context_tokens
        prompt_tokens = self._model.tokens_of(prompt.text)
        wanted = prompt_tokens + (most_tokens or 1)
        if wanted > limit:
            raise RequestError(
                400,
                f"This model's maximum context length is {limit} tokens. However, you requested"
                f" {wanted} tokens ({prompt_tokens} in the prompt). Please reduce the length.",
            )

    def _deliver(
        self, dialect: Dialect, generation: Generation, request: ReceivedRequest
    ) -> Script:
        done_at_s = generation.done_at_s
        is_over = False
        try:
            if generation.job.stream:
                with_load = self._model.load_header_on_streams
                headers = _EVENTS + (self._load_header(request) if with_load else ())
                yield Head(generation.began_at_s, 200, headers)
                for at_s, event in dialect.events(generation):
                    if at_s >= done_at_s:
                        self._remember(generation)
                    yield Data(at_s, event)
            else:
                yield Wait(done_at_s)
                self._remember(generation)
                body, headers = dialect.document(generation), self._load_header(request)
                yield from reply(done_at_s, 200, body, headers=headers)
            is_over = True
        finally:
            if not is_over:
                self._cancel(generation.admissions)

    def _load_header(self, request: ReceivedRequest) -> tuple[tuple[str, str], ...]:
        wanted = request.header("endpoint-load-metrics-format")
        if wanted is None:
            return ()
        return operations.load_header(self._engine.stats(self._clock.now_s()), wanted)

    def _remember(self, generation: Generation) -> None:
        """Keep the turns of a response, for requests that continue it."""
        if generation.job.history is None:
            return
        answer = turn("assistant", generation.choices[0].answer.rendered)
        self._turns[f"resp_{generation.serial}"] = generation.job.history + answer
        while len(self._turns) > _MAX_REMEMBERED:
            self._turns.popitem(last=False)

    def _cancel(self, admissions: Sequence[Admission]) -> None:
        for admission in admissions:
            self._engine.cancel(admission, self._clock.now_s())


def _json_object(request: ReceivedRequest) -> Mapping[str, object]:
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"The body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError(400, "The body must be a JSON object")
    return body
