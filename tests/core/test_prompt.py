"""``Prompt``, ``Cut``, and how segments are cut into blocks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from prefixroute.core.hashing import (
    ChainBuilder,
    Part,
    digest64,
    pack_fields,
    running_hash,
    utf8,
    window_key,
)
from prefixroute.core.prompt import Cut, KeySource, Prompt
from prefixroute.errors import ConfigurationError


def text(data: bytes) -> Part:
    return (b"t", data, len(data))


def built(*segments: list[Part], block: int = 8, extra: int = 0) -> ChainBuilder:
    builder = ChainBuilder(block)
    for parts in segments:
        builder.add(b"M", parts, extra=extra)
    return builder


class TestDigests:
    def test_known_values(self) -> None:
        assert digest64(b"", seed=0) == 0
        assert digest64(b"hello", seed=0) == 0xCBD8A7B341BD9B02
        assert digest64(b"hello") != digest64(b"hello", seed=0)

    def test_a_running_hash_agrees_with_a_single_one_at_every_boundary(self) -> None:
        state = running_hash()
        for end in range(1, 40):
            state.update(bytes([end]))
            assert state.utupledigest()[0] == digest64(bytes(range(1, end + 1)))

    def test_seeds_beyond_32_bits_are_wrapped(self) -> None:
        assert digest64(b"x", seed=2**32 + 5) == digest64(b"x", seed=5)
        assert running_hash(-1).utupledigest() == running_hash(2**32 - 1).utupledigest()

    def test_any_str_has_bytes(self) -> None:
        assert utf8("é") == b"\xc3\xa9"
        assert utf8("a\ud800b") == b"a\xed\xa0\x80b"

    def test_a_surrogate_pair_in_two_halves_is_one_character(self) -> None:
        assert utf8("\ud83d\ude00\udc00") == "😀".encode() + b"\xed\xb0\x80"

    def test_fields_can_be_taken_apart(self) -> None:
        assert pack_fields(b"M", [(b"a", b"b")]) != pack_fields(b"M", [(b"a", b""), (b"b", b"")])
        assert pack_fields(b"M", []) == b"M"


class TestBlocks:
    @pytest.mark.parametrize(
        ("length", "ends"),
        [(0, [0]), (1, [1]), (8, [8]), (9, [8, 9]), (16, [8, 16]), (20, [8, 16, 20])],
    )
    def test_a_boundary_every_block_and_at_the_end(self, length: int, ends: list[int]) -> None:
        assert built([text(b"x" * length)]).ends == ends

    def test_blocks_are_counted_from_the_start_of_each_segment(self) -> None:
        builder = built([text(b"x" * 10)], [text(b"y" * 10)], extra=3)
        assert builder.ends == [8, 13, 21, 26]
        assert builder.size == 26

    def test_steps_come_before_the_first_block(self) -> None:
        builder = ChainBuilder(8)
        builder.add(b"P", [text(b"x" * 30)], steps=(1, 2, 4))
        assert builder.ends == [1, 2, 4, 8, 16, 24, 30]

    def test_a_block_doubles_every_64(self) -> None:
        builder = built([text(bytes(8 * 64 + 16 * 64 + 32 + 1))])
        assert builder.ends[63:66] == [8 * 64, 8 * 64 + 16, 8 * 64 + 32]
        assert builder.ends[127:] == [8 * 64 + 16 * 64, 8 * 64 + 16 * 64 + 32, builder.size]

    def test_a_long_prompt_has_a_short_chain(self) -> None:
        assert len(built([text(bytes(2**24))]).chain) < 64 * 20

    def test_a_growing_text_keeps_its_whole_blocks(self) -> None:
        data = bytes(range(256))
        longest = built([text(data)]).chain
        for length in range(1, 256, 7):
            whole = (length - 1) // 8
            assert built([text(data[:length])]).chain[:whole] == longest[:whole]

    def test_a_block_cannot_be_mistaken_for_an_end(self) -> None:
        assert built([text(b"x" * 8)]).chain[0] != built([text(b"x" * 9)]).chain[0]

    def test_no_two_ways_to_split_parts_agree_at_any_boundary_behind_the_split(self) -> None:
        whole = built([text(b"abcdefghijklmnop!")])
        for at in range(1, 9):
            data = b"abcdefghijklmnop!"
            split = built([text(data[:at]), text(data[at:])])
            assert not set(whole.chain) & set(split.chain)
            assert split.ends == whole.ends
        late = built([text(b"abcdefghijkl"), text(b"mnop!")])
        assert late.chain[0] == whole.chain[0]
        assert not set(late.chain[1:]) & set(whole.chain)

    def test_kinds_and_heads_and_segments_count(self) -> None:
        variants = [
            built([(b"t", b"ab", 2)]),
            built([(b"j", b"ab", 2)]),
            built([(b"t", b"a", 1), (b"t", b"b", 1)]),
            built([(b"t", b"a", 1)], [(b"t", b"b", 1)]),
            built([(b"t", b"ab", 2), (b"t", b"", 0)]),
            built([(b"t", b"ab", 2)], []),
        ]
        assert len({variant.chain[-1] for variant in variants}) == len(variants)
        other = ChainBuilder(8)
        other.add(b"N", [text(b"ab")])
        assert other.chain != variants[0].chain

    def test_text_that_looks_like_the_encoding_is_text(self) -> None:
        plain = ChainBuilder(1024)
        plain.add(b"M", [text(b"a")])
        plain.add(b"M", [text(b"b")])
        frame = b"\x01" + bytes(7) + b"\x01\x00\x00\x00\x01Mt\x01\x01" + bytes(7)
        forged = ChainBuilder(1024)
        forged.add(b"M", [text(b"a" + frame + b"b")])
        assert forged.chain[-1] != plain.chain[-1]

    def test_sizes_of_parts_that_are_not_their_bytes(self) -> None:
        builder = built([(b"d", bytes(16), 1000), text(b"x" * 8)])
        assert builder.ends == [500, 1000, 1008]

    def test_all_segments_at_once_are_the_same_as_one_by_one(self) -> None:
        texts = [b"", b"short", b"x" * 8, b"y" * 9, b"z" * 100, b"short"]
        one_by_one = built(*[[text(data)] for data in texts], extra=3)
        at_once = ChainBuilder(8)
        at_once.add_all([(b"M", data) for data in texts], extra=3)
        assert at_once.chain == one_by_one.chain
        assert at_once.ends == one_by_one.ends
        mixed = ChainBuilder(8)
        mixed.add_all([(b"M", [text(d)] if d == b"short" else d) for d in texts], extra=3)
        assert mixed.chain == one_by_one.chain

    @pytest.mark.parametrize("steps", [(), (2, 4)])
    def test_and_so_they_are_with_steps_before_the_first_block(
        self, steps: tuple[int, ...]
    ) -> None:
        texts = [b"short", b"z" * 100]
        one_by_one, at_once = ChainBuilder(8), ChainBuilder(8)
        for data in texts:
            one_by_one.add(b"M", [text(data)], steps=steps)
        at_once.add_all([(b"M", data) for data in texts], steps=steps)
        assert (at_once.chain, at_once.ends) == (one_by_one.chain, one_by_one.ends)


class TestWindow:
    def test_only_the_window_counts(self) -> None:
        first = window_key(b"", [(b"", [text(b"abcd")]), (b"M", b"efgh")], 6)
        assert first == window_key(b"", [(b"", [text(b"abcd")]), (b"M", b"efxx")], 6)
        assert first != window_key(b"", [(b"", [text(b"abcd")]), (b"M", b"exgh")], 6)
        assert first != window_key(b"!", [(b"", [text(b"abcd")]), (b"M", b"efgh")], 6)

    @pytest.mark.parametrize("length", [6, 7, 100])
    def test_a_text_that_fills_it_is_equal_to_a_longer_one(self, length: int) -> None:
        full = window_key(b"", [(b"", []), (b"M", b"abcdef")], 6)
        assert window_key(b"", [(b"", []), (b"M", b"abcdef" + b"x" * (length - 6))], 6) == full
        assert window_key(b"", [(b"", []), (b"M", b"abcde")], 6) != full

    def test_nothing_behind_the_window_counts(self) -> None:
        assert window_key(b"", [(b"", b"abc"), (b"M", b"x")], 3) == window_key(
            b"", [(b"", b"abc"), (b"N", b"y")], 3
        )


class TestCut:
    @pytest.mark.parametrize("value", [0, -1, 1.5, "1024", None, True])
    def test_a_block_needs_a_length(self, value: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"block_bytes=.* must be an int, 1 or"):
            Cut(block_bytes=value)

    @pytest.mark.parametrize("value", [0, -1, 1.5, "1024", False])
    def test_a_window_needs_a_length(self, value: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"window_bytes=.* must be an int, 1 or"):
            Cut(window_bytes=value)


class TestPrompt:
    def test_without_a_chain(self) -> None:
        prompt = Prompt()
        assert (prompt.chain, prompt.ends, prompt.size) == ((), (), 0)
        assert prompt.source is KeySource.NONE
        assert prompt.tokens == 0

    def test_is_a_value(self) -> None:
        prompt = Prompt(chain=(1,), ends=(4,), size=4)
        assert prompt == Prompt(chain=(1,), ends=(4,), size=4)
        assert hash(prompt) == hash(Prompt(chain=(1,), ends=(4,), size=4))
        with pytest.raises(AttributeError):
            prompt.size = 5  # type: ignore[misc]

    def test_sizes_in_tokens(self) -> None:
        assert Prompt(size=400).tokens == 100
        assert Prompt(size=400, tokens_per_unit=1.0).tokens == 400
        assert not Prompt(size=400).counted
        assert Prompt(size=400, tokens_per_unit=1.0).counted

    def test_with_another_ratio(self) -> None:
        prompt = Prompt(chain=(1,), ends=(400,), size=400, model="m", session="s")
        other = prompt.with_ratio(0.5)
        assert other.tokens == 200
        assert other == msgspec.structs.replace(prompt, tokens_per_unit=0.5)
        assert prompt.with_ratio(0.25) is prompt

    def test_repr_keeps_ids_to_itself(self) -> None:
        prompt = Prompt(chain=(1, 2), ends=(4, 8), size=8, model="m", session="secret", pin="pin-1")
        assert repr(prompt) == "<Prompt none, 2 blocks, about 2 tokens, model 'm'>"


class TestFromBlocks:
    def test_ids_are_chained(self) -> None:
        prompt = Prompt.from_blocks([1, 2, 3], block_tokens=512, tokens=1100)
        assert prompt.ends == (512, 1024, 1100)
        assert prompt.size == 1100
        assert prompt.counted
        assert prompt.source is KeySource.BLOCKS
        longer = Prompt.from_blocks([1, 2, 3, 4], block_tokens=512)
        assert longer.chain[:3] == prompt.chain
        assert longer.size == 2048

    def test_an_id_means_the_same_only_after_the_same_ids(self) -> None:
        ab, cb, ba = (Prompt.from_blocks(ids, block_tokens=1) for ids in ([1, 2], [3, 2], [2, 1]))
        assert len({*ab.chain, *cb.chain, *ba.chain}) == 6

    @pytest.mark.parametrize("other", [-1, 2**64 - 1, 2**64 + 1, 2**200, 0, 256, 255, -256])
    def test_no_two_ids_are_the_same(self, other: int) -> None:
        key = Prompt.from_blocks([1], block_tokens=1).chain
        assert Prompt.from_blocks([other], block_tokens=1).chain != key

    def test_models_have_their_own(self) -> None:
        chains = {
            Prompt.from_blocks([1], block_tokens=1, model=model).chain for model in (None, "", "m")
        }
        assert len(chains) == 3

    def test_no_blocks_no_key(self) -> None:
        assert Prompt.from_blocks([], block_tokens=512) == Prompt(tokens_per_unit=1.0)
        assert Prompt.from_blocks(iter(()), block_tokens=512, tokens=0).source is KeySource.NONE

    def test_ints_of_other_kinds(self) -> None:
        class Number:
            def __index__(self) -> int:
                return 7

        one: Any = Number()
        prompt = Prompt.from_blocks((one, 8), block_tokens=one, tokens=one.__index__() + 1)
        assert prompt == Prompt.from_blocks([7, 8], block_tokens=7, tokens=8)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"block_tokens": 0}, r"block_tokens=0 must be an int, 1 or greater; give"),
            ({"block_tokens": -5}, r"block_tokens=-5 must be an int, 1 or greater"),
            ({"block_tokens": "512"}, r"block_tokens='512' must be an int"),
            ({"block_tokens": 512.0}, r"block_tokens=512.0 must be an int"),
            ({"block_tokens": True}, r"block_tokens=True must be an int"),
            ({"tokens": 512}, r"tokens=512 must end in the last of 2 blocks of 512, from 513"),
            ({"tokens": 1025}, r"to 1024; name every block, or leave tokens out"),
            ({"tokens": 0}, r"tokens=0 must end in the last"),
            ({"tokens": "9"}, r"tokens='9' must be an int"),
            ({"block_ids": [1, "x"]}, r"block_ids\[1\]='x' must be an int"),
            ({"block_ids": [1.0]}, r"block_ids\[0\]=1.0 must be an int"),
            ({"block_ids": [None]}, r"block_ids\[0\]=None must be an int"),
            ({"block_ids": "12"}, r"block_ids\[0\]='1' must be an int"),
            ({"block_ids": 12}, r"block_ids=12 must be iterable; give a list of ints"),
            ({"block_ids": None}, r"block_ids=None must be iterable"),
            ({"block_ids": [], "tokens": 5}, r"tokens=5 must end in the last of 0 blocks"),
            ({"model": 3}, r"model=3 must be a str or None; give the model's name"),
        ],
    )
    def test_what_cannot_be(self, arguments: dict[str, Any], message: str) -> None:
        given: dict[str, Any] = {"block_ids": [1, 2], "block_tokens": 512, **arguments}
        with pytest.raises(ConfigurationError, match=message):
            Prompt.from_blocks(given.pop("block_ids"), **given)
