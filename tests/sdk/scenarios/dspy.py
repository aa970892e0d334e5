"""DSPy, which calls through LiteLLM, whose HTTP clients are set for the whole process."""

# mypy: disable-error-code="import-not-found", allow-untyped-decorators, allow-subclassing-any

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # before the import: it would look for prices

import dspy
import litellm

from tests.sdk.support import (
    FIRST,
    OTHER,
    OTHER_SYSTEM,
    SECOND,
    SYSTEM,
    Cases,
    Target,
    library_of_openai,
)

LIBRARY = library_of_openai()
MODEL = "openai/gpt-4o-mini"  # a name that LiteLLM knows to take schemas and tools

# By itself it awaits over aiohttp, which spells the names of headers another way.
litellm.disable_aiohttp_transport = True


class Log(dspy.Signature):
    __doc__ = SYSTEM

    history: dspy.History = dspy.InputField()
    question: str = dspy.InputField()
    hour: int = dspy.OutputField()
    seen: list[str] = dspy.OutputField()


class Dinner(dspy.Signature):
    __doc__ = OTHER_SYSTEM

    question: str = dspy.InputField()
    dishes: list[str] = dspy.OutputField()


class Tools(dspy.Signature):
    __doc__ = SYSTEM

    history: dspy.History = dspy.InputField()
    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


def look(hour: int) -> str:
    """Look out."""
    return f"A ship, at {hour}."


@contextmanager
def configured(at: Target, **settings: Any) -> Iterator[None]:
    """DSPy with a model whose calls are routed."""
    litellm.client_session = at.http(LIBRARY)
    litellm.aclient_session = at.async_http(LIBRARY)
    litellm.in_memory_llm_clients_cache.flush_cache()
    if int(version("dspy").split(".")[1]) >= 4:  # has an engine of its own, which takes no client
        settings["engine"] = "litellm"
    model = dspy.LM(MODEL, api_base=at.base_url, api_key=at.api_key, cache=False, **settings)
    try:
        with dspy.context(lm=model, adapter=dspy.JSONAdapter(use_native_function_calling=True)):
            yield
    finally:
        litellm.client_session = litellm.aclient_session = None


def turns(*turns: dict[str, Any]) -> dspy.History:
    """What was said before."""
    return dspy.History(messages=list(turns))


def earlier(reply: Any) -> dspy.History:
    """The first turn, as history."""
    assert (reply.hour, reply.seen) == (0, [])
    return turns({"question": FIRST, "hour": reply.hour, "seen": reply.seen})


def predict(at: Target) -> None:
    with configured(at):
        log = dspy.Predict(Log)
        reply = log(question=FIRST, history=turns())
        log(question=SECOND, history=earlier(reply))
        dspy.Predict(Dinner)(question=OTHER)


async def apredict(at: Target) -> None:
    with configured(at):
        log = dspy.Predict(Log)
        reply = await log.acall(question=FIRST, history=turns())
        await log.acall(question=SECOND, history=earlier(reply))
        await dspy.Predict(Dinner).acall(question=OTHER)


async def streamify(at: Target) -> None:
    with configured(at):
        log = dspy.streamify(dspy.Predict(Log))
        *chunks, reply = [chunk async for chunk in log(question=FIRST, history=turns())]
        assert len(chunks) > 2
        assert [chunk async for chunk in log(question=SECOND, history=earlier(reply))]


def tools(at: Target) -> None:
    with configured(at, tool_choice="required"):
        ask = dspy.Predict(Tools)
        for history in (
            turns(),
            turns({"question": FIRST, "calls": dspy.ToolCalls(tool_calls=[])}),
        ):
            reply = ask(question=FIRST, tools=[dspy.Tool(look)], history=history)
            assert reply.calls.tool_calls[0].args == {"hour": 0}


CASES = Cases(
    distributions=("dspy", "litellm", "openai", LIBRARY),
    sync=(predict,),
    asynchronous=(apredict,),
    stream=(streamify,),
    tools=(predict, tools),
)
