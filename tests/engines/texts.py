"""Seeded chat texts: system prompts of assistants and what their users write."""

from __future__ import annotations

import random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NAMES = _words(
    "Ada Alma Anton Basil Bella Carla Chester Clara Conrad Daisy Dora Edgar Elsa Emil Faye Felix "
    "Flora Gilda Hugo Ida Iris Jasper Judith Kurt Leo Lotte Luna Magnus Mara Milo Nadia Nina Olga "
    "Oscar Pearl Quentin Rosa Rufus Selma Silas Stella Tessa Theo Ursula Vera Victor Willa Xenia"
)
_TRADES = _words(
    "bakery bank bookshop clinic farm garage garden gym hotel lawyer library market museum "
    "pharmacy railway restaurant school theatre warehouse workshop"
)
_VERBS = _words(
    "answer arrange book cancel check collect compare confirm count deliver describe explain file "
    "find list measure mention move note offer order pack pay plan prepare print record refund "
    "remember repair replace report return review sell send sort store test translate weigh write"
)
_ADJECTIVES = _words(
    "annual blue broken cheap clean cold early empty expensive final first fresh full heavy large "
    "late local long missing monthly new old open polite private quick quiet recent red round "
    "safe second short simple small special spare usual warm weekly white wrong"
)
_NOUNS = _words(
    "account address agreement bill box bridge calendar card catalogue chair contract cup date "
    "delivery door engine entrance form garden glass guest invoice key lamp letter list machine "
    "map meal menu number office order package paper parcel payment phone picture plan price "
    "receipt refund report room sample schedule screen seat service ship shop sign stock street "
    "suitcase table ticket tool train visit wall watch window winter"
)


def system_prompts(rng: random.Random, count: int) -> list[str]:
    """Instructions for `count` assistants: about 140 tokens each, different from the third word on.

    Raises:
        ValueError: there are not that many names.
    """
    return [_system_prompt(rng, name) for name in rng.sample(_NAMES, count)]


def user_message(rng: random.Random) -> str:
    """A short request, about 8 tokens."""
    return f"Can you {rng.choice(_VERBS)} the {rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}?"


def _system_prompt(rng: random.Random, name: str) -> str:
    rules = " ".join(_rule(rng) for _ in range(8))
    return (
        f"You are {name}, the assistant of a {rng.choice(_TRADES)}. {rules} Answer in one sentence."
    )


def _rule(rng: random.Random) -> str:
    adjective = rng.choice(_ADJECTIVES)
    noun, first, second = rng.sample(_NOUNS, 3)
    verb, then = rng.sample(_VERBS, 2)
    return f"If a {noun} is {adjective}, always {verb} the {first} and {then} the {second}."
