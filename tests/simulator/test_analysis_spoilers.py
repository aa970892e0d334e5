from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from prefixroute.simulator.analysis import Analysis, Spoiler, analyze

from .logs import asked, chat, prose, rows, tool, written

COUNT = 60
START = datetime(2025, 5, 3, 9, 58, 41, 123456, tzinfo=UTC)

Value = Callable[[Random, int], str]


def moment(at: int) -> datetime:
    return START + timedelta(seconds=37 * at)


def day(at: int) -> datetime:
    return START + timedelta(days=at)


VALUES: dict[str, tuple[str, str, Value]] = {
    "iso": ("timestamp", "Current time: ", lambda _, at: moment(at).isoformat()),
    "blank": ("timestamp", "Now: ", lambda _, at: f"{moment(2 * at):%Y-%m-%d %H:%M}"),
    "mail": ("timestamp", "Date: ", lambda _, at: format_datetime(moment(at))),
    "ctime": ("timestamp", "Date: ", lambda _, at: moment(at).ctime()),
    "epoch": ("epoch", "t=", lambda _, at: f"{moment(at).timestamp():.0f}"),
    "clock": ("time", "It is ", lambda _, at: f"{moment(at):%I:%M:%S %p}"),
    "date": ("date", "Date: ", lambda _, at: f"{day(at):%Y-%m-%d}"),
    "written": ("date", "Today is ", lambda _, at: f"{day(at):%A, %B %d, %Y}"),
    "weekday": ("date", "Today is ", lambda _, at: f"{day(at):%A, %d %b %Y}"),
    "uuid": ("uuid", "Request: ", lambda rng, _: str(UUID(int=rng.getrandbits(128)))),
    "hex": ("hex", "trace ", lambda rng, _: f"a0{rng.getrandbits(120):030x}"),
    "id": ("id", "id ", lambda rng, _: f"req_Z{rng.getrandbits(60):015d}9"),
    "counter": ("counter", "Call number ", lambda _, at: str(100 + at)),
    "e-mail": ("email", "For ", lambda rng, at: f"{rng.choice('abc')}{at}@example.com"),
    "name": ("user", "The user's name is ", lambda rng, at: prose(rng, 2).title() + "."),
    "nonce": ("text", "Mood: ", lambda rng, at: prose(rng, 3)),
}


def analysed(path: Path, bodies: list[dict[str, object]]) -> Analysis:
    return analyze(written(path / "log.jsonl", rows(bodies)))


def only(analysis: Analysis) -> Spoiler:
    [spoiler] = analysis.spoilers
    return spoiler


def shown(analysis: Analysis) -> str:
    html = analysis._repr_html_()
    return html + json.dumps(analysis.to_dict())


@pytest.mark.parametrize("where", ["start", "middle"])
@pytest.mark.parametrize("which", VALUES)
def test_a_value_in_the_system_prompt_is_found(tmp_path: Path, which: str, where: str) -> None:
    kind, label, value = VALUES[which]
    rng = Random(which)
    rules = prose(rng, 400)
    front = "" if where == "start" else rules[:700] + "\n"
    seen = [value(rng, at) for at in range(COUNT)]
    bodies = [chat(rng, f"{front}{label}{v}\n{rules}") for v in seen]
    analysis = analysed(tmp_path, bodies)
    spoiler = only(analysis)
    assert (spoiler.place, spoiler.role) == ("messages[0].content", "system")
    assert spoiler.kind == kind
    assert abs(spoiler.offset - len(front + label)) <= 2
    assert label.strip() in spoiler.pattern
    assert spoiler.requests == COUNT
    lost = (COUNT - 1) * len(rules) / 4
    assert 0.85 * lost < spoiler.tokens_lost < 1.1 * lost
    assert not any(v in shown(analysis) for v in seen if len(v) > 3)  # else it may be a figure


def test_what_is_lost_is_what_removing_it_gains(tmp_path: Path) -> None:
    rng = Random(1)
    rules, asks = prose(rng, 500), [asked(rng) for _ in range(COUNT)]

    def bodies(line: Callable[[int], str]) -> list[dict[str, object]]:
        return [
            {"messages": [{"role": "system", "content": line(at) + rules}, ask]}
            for at, ask in enumerate(asks)
        ]

    spoiled = analysed(tmp_path, bodies(lambda at: f"Time: {moment(at).isoformat()}\n"))
    clean = analysed(tmp_path, bodies(lambda _: "Time: fixed\n"))
    assert not clean.spoilers
    assert spoiled.search is not None
    assert spoiled.search.share_if_fixed == pytest.approx(clean.repeated_share, abs=0.02)
    assert spoiled.repeated_share < 0.02


def test_two_spoilers_are_told_apart(tmp_path: Path) -> None:
    rng = Random(2)
    rules, more = prose(rng, 300), prose(rng, 300)
    bodies = [
        chat(
            rng,
            f"You help.\nRequest: {UUID(int=rng.getrandbits(128))}\n{rules}\n"
            f"Today is {day(at):%A, %B %d, %Y}. {more}",
        )
        for at in range(COUNT)
    ]
    analysis = analysed(tmp_path, bodies)
    assert [spoiler.kind for spoiler in analysis.spoilers] == ["uuid", "date"]
    first, second = analysis.spoilers
    assert first.tokens_lost > 1.5 * second.tokens_lost


def test_values_next_to_each_other(tmp_path: Path) -> None:
    rng = Random(3)
    rules = prose(rng, 300)
    bodies = [
        chat(rng, f"Time: {moment(at)}\nRequest: {UUID(int=rng.getrandbits(128))}\n{rules}")
        for at in range(COUNT)
    ]
    analysis = analysed(tmp_path, bodies)
    assert {spoiler.kind for spoiler in analysis.spoilers} == {"timestamp", "uuid"}


SHAPES: dict[str, tuple[str, str, Callable[[Random, str], dict[str, object]]]] = {
    "blocks": (
        "messages[0].content[1].text",
        "system",
        lambda rng, text: chat(
            rng, [{"type": "text", "text": "Be kind."}, {"type": "text", "text": text}]
        ),
    ),
    "anthropic": (
        "system",
        "system",
        lambda rng, text: {"system": text, "messages": [asked(rng)], "max_tokens": 9},
    ),
    "anthropic blocks": (
        "system[0].text",
        "system",
        lambda rng, text: {
            "system": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}],
            "messages": [asked(rng)],
        },
    ),
    "developer": (
        "messages[0].content",
        "developer",
        lambda rng, text: {"messages": [{"role": "developer", "content": text}, asked(rng)]},
    ),
    "second system": (
        "messages[1].content",
        "system",
        lambda rng, text: {
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "system", "content": text},
                asked(rng),
            ]
        },
    ),
    "responses": (
        "instructions",
        "system",
        lambda rng, text: {"instructions": text, "input": prose(rng, 20)},
    ),
    "user message": (
        "messages[0].content",
        "user",
        lambda rng, text: {"messages": [{"role": "user", "content": f"{text}\n{prose(rng, 90)}"}]},
    ),
    "completions": ("prompt", "prompt", lambda rng, text: {"prompt": f"{text}\n{prose(rng, 90)}"}),
    "batch": ("prompt[0]", "prompt", lambda rng, text: {"prompt": [f"{text}\n{prose(rng, 90)}"]}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_timestamp_is_found_in_every_shape_of_request(tmp_path: Path, shape: str) -> None:
    place, role, body = SHAPES[shape]
    rng = Random(4)
    rules = prose(rng, 300)
    bodies = [body(rng, f"Now: {moment(at).isoformat()}\n{rules}") for at in range(COUNT)]
    spoiler = only(analysed(tmp_path, bodies))
    assert (spoiler.place, spoiler.role, spoiler.kind) == (place, role, "timestamp")


def test_text_of_many_alphabets(tmp_path: Path) -> None:
    rng = Random(5)
    rules = "".join(chr(rng.randrange(0x4E00, 0x9000)) for _ in range(900)) + " 🤖 Ünïcödé"
    bodies = [chat(rng, f"当前时间: {moment(at).isoformat()}。{rules}") for at in range(COUNT)]
    spoiler = only(analysed(tmp_path, bodies))
    assert spoiler.kind == "timestamp"
    assert spoiler.pattern == "当前时间: <timestamp>"


TOOLS = [tool(name, prose(Random(name), 30)) for name in "abcdefgh"]


def test_tools_in_varying_order(tmp_path: Path) -> None:
    rng = Random(6)
    rules = prose(rng, 200)
    bodies = [chat(rng, rules, tools=rng.sample(TOOLS, len(TOOLS))) for _ in range(COUNT)]
    spoiler = only(analysed(tmp_path, bodies))
    assert (spoiler.place, spoiler.kind) == ("tools", "order")
    assert "sort" in spoiler.remedy


def test_keys_of_tools_in_varying_order(tmp_path: Path) -> None:
    def turned(value: object) -> object:
        if not isinstance(value, dict):
            return value
        keys = rng.sample(sorted(value), len(value))
        return {key: turned(value[key]) for key in keys}

    rng = Random(7)
    rules = prose(rng, 200)
    bodies = [chat(rng, rules, tools=[turned(t) for t in TOOLS]) for _ in range(COUNT)]
    spoiler = only(analysed(tmp_path, bodies))
    assert (spoiler.place, spoiler.kind) == ("tools", "keys")


def test_a_date_in_a_tools_description(tmp_path: Path) -> None:
    rng = Random(8)
    rules = prose(rng, 200)
    bodies = [
        chat(rng, rules, tools=[tool("a_clock", f"Today is {day(at):%Y-%m-%d}."), *TOOLS])
        for at in range(COUNT)
    ]
    spoiler = only(analysed(tmp_path, bodies))
    assert (spoiler.place, spoiler.kind) == ("tools", "date")


def test_blanks_that_differ(tmp_path: Path) -> None:
    rng = Random(9)
    rules = prose(rng, 300)
    bodies = [chat(rng, f"Rules:{rng.choice([' ', '  ', '   '])}{rules}") for _ in range(8 * COUNT)]
    analysis = analysed(tmp_path, bodies)
    assert not analysis.spoilers  # three prompts, each many times: it costs next to nothing
    bodies = [chat(rng, f"Rules:{' ' * (1 + at)}{rules}") for at in range(COUNT)]
    assert only(analysed(tmp_path, bodies)).kind == "whitespace"


def test_a_varying_message_in_front_of_a_constant_one(tmp_path: Path) -> None:
    rng = Random(10)
    rules = prose(rng, 300)
    bodies: list[dict[str, object]] = [
        {
            "messages": [
                {"role": "system", "content": prose(rng, rng.randrange(4, 30))},
                {"role": "system", "content": rules},
                asked(rng),
            ]
        }
        for _ in range(COUNT)
    ]
    spoiler = only(analysed(tmp_path, bodies))
    assert (spoiler.place, spoiler.pattern) == ("messages[0].content", "the whole text")


@pytest.mark.parametrize("field", ["cache_salt", "prompt_cache_key"])
def test_a_field_with_a_value_of_its_own_in_each_request(tmp_path: Path, field: str) -> None:
    rng = Random(11)
    rules = prose(rng, 300)
    secrets = [f"{rng.getrandbits(64):x}" for _ in range(COUNT)]
    analysis = analysed(tmp_path, [chat(rng, rules, **{field: secret}) for secret in secrets])
    assert (only(analysis).place, only(analysis).kind) == (field, "field")
    assert not any(secret in shown(analysis) for secret in secrets)


def test_conversations_whose_system_prompt_is_stamped_anew_at_each_turn(tmp_path: Path) -> None:
    rng = Random(12)
    rules = prose(rng, 150)
    talks: list[list[dict[str, object]]] = [[] for _ in range(6)]
    bodies: list[dict[str, object]] = []
    for at in range(COUNT):
        talk = talks[at % 6]
        talk.append(asked(rng))
        system = {"role": "system", "content": f"{moment(at).isoformat()} {rules}"}
        bodies.append({"messages": [system, *talk]})
        talk.append({"role": "assistant", "content": prose(rng, 40)})
    analysis = analysed(tmp_path, bodies)
    assert only(analysis).kind == "timestamp"
    assert analysis.search is not None
    assert analysis.search.share_if_fixed > 0.8


def test_only_the_application_that_has_one_is_named(tmp_path: Path) -> None:
    rng = Random(13)
    one, two, three = (prose(rng, 300) for _ in range(3))
    bodies = []
    for at in range(3 * COUNT):
        if at % 3 == 0:
            bodies.append(chat(rng, one))
        elif at % 3 == 1:
            bodies.append({"system": two, "messages": [asked(rng)], "max_tokens": 5})
        else:
            bodies.append(chat(rng, f"Trace {UUID(int=rng.getrandbits(128))}. {three}"))
    spoiler = only(analysed(tmp_path, bodies))
    assert (spoiler.kind, spoiler.requests) == ("uuid", COUNT)


# -- nothing to find -------------------------------------------------------------------------------


def clean(rng: Random) -> dict[str, Callable[[int], dict[str, object]]]:
    rules, few = prose(rng, 300), "Be kind."
    apps = [prose(rng, 300) for _ in range(4)]
    return {
        "nothing varies": lambda _: chat(rng, rules),
        "a date in the question": lambda at: {
            "messages": [
                {"role": "system", "content": rules},
                {
                    "role": "user",
                    "content": f"What happened on {day(at):%Y-%m-%d}? {prose(rng, 9)}",
                },
            ]
        },
        "a date at the end": lambda at: chat(rng, f"{rules}\nToday is {day(at):%Y-%m-%d}."),
        "a fixed date": lambda _: chat(rng, f"Knowledge ends 2024-06-01.\n{rules}"),
        "several applications": lambda at: chat(rng, apps[at % 4]),
        "unrelated prompts": lambda _: chat(rng, prose(rng, 300)),
        "a short head": lambda at: chat(rng, f"{moment(at).isoformat()} {few}"),
        "documents": lambda _: {"prompt": prose(rng, 500)},
        "the same tools": lambda _: chat(rng, rules, tools=TOOLS),
        "one key for all": lambda _: chat(rng, rules, prompt_cache_key="app"),
    }


@pytest.mark.parametrize("which", clean(Random(0)))
def test_a_clean_log_reports_nothing(tmp_path: Path, which: str) -> None:
    body = clean(Random(which))[which]
    analysis = analysed(tmp_path, [body(at) for at in range(COUNT)])
    assert analysis.spoilers == ()


def test_what_varies_once_a_day_costs_little(tmp_path: Path) -> None:
    rng = Random(14)
    rules = prose(rng, 300)
    bodies = [chat(rng, f"Today is {day(at // 300):%Y-%m-%d}.\n{rules}") for at in range(600)]
    assert analysed(tmp_path, bodies).spoilers == ()


def test_literal_values_are_shown_only_when_asked_for(tmp_path: Path) -> None:
    rng = Random(15)
    rules = prose(rng, 300)
    users = [f"secret{at}@example.com" for at in range(COUNT)]
    log = written(tmp_path / "log.jsonl", rows([chat(rng, f"User: {u}\n{rules}") for u in users]))
    hidden, open_ = analyze(log), analyze(log, show_text=True)
    assert "secret" not in shown(hidden) + repr(hidden)
    assert rules[:20] not in shown(hidden) + repr(hidden)
    assert "secret0@example.com" in shown(open_)


def test_a_secret_in_front_of_a_value_is_masked(tmp_path: Path) -> None:
    rng = Random(16)
    rules = prose(rng, 300)
    key = "sk-proj-4f9aQ7zL1x8W2m"
    bodies = [chat(rng, f"key {key} at {moment(at).isoformat()} {rules}") for at in range(COUNT)]
    analysis = analysed(tmp_path, bodies)
    assert only(analysis).pattern == "key <random id> at <timestamp>"
