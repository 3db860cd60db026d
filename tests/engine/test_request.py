"""Taking tokens: where an accepted run ends a request, and which text is released when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.config import SamplingParams
from slipstream.engine.request import Request
from slipstream.errors import UsageError
from slipstream.plan_checks import check_sampling
from tests.engines import Fleet

EOS = 0


class Letters:
    """Token 97 is "a", and so on."""

    def push(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def flush(self) -> str:
        return ""


def request(stream: Any = None, *, prompt: int = 1, **sampling: Any) -> Request:
    return Request(0, [1] * prompt, SamplingParams(**({"max_tokens": 100} | sampling)), stream or Letters())


def take(made: Request, text: str | list[int], max_model_len: int = 1000) -> tuple[str, str]:
    """Push an accepted run; return (letters taken, text released)."""
    tokens = [ord(letter) for letter in text] if isinstance(text, str) else text
    taken, released = made.take(tokens, frozenset({EOS}), max_model_len)
    return "".join(map(chr, taken)), released


class TestWhereAnAcceptedRunEnds:
    def test_at_max_tokens(self) -> None:
        made = request(max_tokens=3)
        assert take(made, "ab") == ("ab", "ab")
        assert take(made, "cde") == ("c", "c")
        assert (made.finish_reason, made.text, len(made.output_ids)) == ("length", "abc", 3)

    def test_at_the_end_of_the_context(self) -> None:
        made = request(prompt=5)
        assert take(made, "abcdef", max_model_len=8) == ("abc", "abc")
        assert made.finish_reason == "length"

    def test_at_the_end_of_text_token_which_gives_no_text(self) -> None:
        made = request()
        assert take(made, [97, EOS, 98]) == ("a\0", "a")
        assert (made.finish_reason, made.text) == ("stop", "a")

    def test_not_at_the_end_of_text_token_where_it_is_ignored(self) -> None:
        made = request(ignore_eos=True)
        assert take(made, [97, EOS, 98]) == ("a\0b", "a\0b")
        assert made.finish_reason is None

    def test_at_a_stop_token_which_gives_no_text_even_where_end_of_text_is_ignored(self) -> None:
        made = request(stop_token_ids=(ord("b"),), ignore_eos=True)
        assert take(made, "abc") == ("ab", "a")
        assert (made.finish_reason, made.text) == ("stop", "a")

    def test_at_a_stop_string_inside_it(self) -> None:
        made = request(stop=("cd",))
        assert take(made, "abcdef") == ("abcd", "ab")
        assert (made.finish_reason, made.text) == ("stop", "ab")

    def test_at_a_stop_string_that_ends_with_the_last_allowed_token(self) -> None:
        made = request(stop=("bc",), max_tokens=3)
        take(made, "abcd")
        assert (made.finish_reason, made.text) == ("stop", "a")


class TestTextThatMayBecomeAStopString:
    def test_is_held_back_until_it_is_none(self) -> None:
        made = request(stop=("END",))
        assert take(made, "xE") == ("xE", "x")
        assert take(made, "N") == ("N", "")
        assert take(made, "x") == ("x", "ENx")
        assert made.text == "xENx"

    def test_is_dropped_when_it_is_one_over_several_runs(self) -> None:
        made = request(stop=("END",))
        assert [take(made, letter)[1] for letter in "xEND"] == ["x", "", "", ""]
        assert (made.finish_reason, made.text) == ("stop", "x")

    def test_is_released_when_the_request_ends_otherwise(self) -> None:
        for ending in ([ord("N")], [EOS]):
            made = request(stop=("END",), max_tokens=3)
            take(made, "xE")
            take(made, ending)
            assert made.finish_reason == ("stop" if ending == [EOS] else "length")
            assert made.text == ("xE" if ending == [EOS] else "xEN")

    def test_is_released_when_the_request_is_given_up(self) -> None:
        made = request(stop=("END",))
        take(made, "xEN")
        assert (made.abort(), made.text, made.finish_reason) == ("EN", "xEN", "abort")

    def test_that_overlaps_itself_is_found(self) -> None:
        made = request(stop=("aab",))
        take(made, "aaab")
        assert (made.finish_reason, made.text) == ("stop", "a")

    def test_the_stop_string_that_is_complete_first_counts(self) -> None:
        made = request(stop=("cde", "bc"))
        take(made, "abcde")
        assert made.text == "a"

    @given(
        st.text("ab", max_size=30),
        st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
        st.lists(st.integers(1, 5)),
    )
    def test_the_text_is_that_up_to_the_first_complete_stop_however_it_came(
        self, text: str, stops: list[str], cuts: list[int]
    ) -> None:
        made = request(stop=tuple(stops), max_tokens=len(text) + 1)
        released, rest = "", text
        for cut in [*cuts, len(text)]:
            if made.finish_reason is None:
                released += take(made, rest[:cut])[1]
                rest = rest[cut:]
        ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(s) for s in stops)]
        if ends:
            complete = text[: ends[0]]
            expected = complete[: min(complete.find(s) for s in stops if s in complete)]
        else:
            expected = text
            released += made.abort()
        assert released == made.text == expected
        assert made.finish_reason == ("stop" if ends else "abort")


class TestCharactersSplitOverTokens:
    TEXT = "aé€😀z"

    def tokens(self, tiny: Fleet, data: bytes) -> list[int]:
        """One token a byte."""
        tokenizer = tiny.loaded().tokenizer
        one_byte = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size)}
        return [one_byte[bytes([byte])] for byte in data]

    def test_are_released_whole(self, tiny: Fleet) -> None:
        made = request(tiny.loaded().tokenizer.stream())
        tokens = self.tokens(tiny, self.TEXT.encode())
        pieces = [made.take([token], frozenset(), 1000)[1] for token in tokens]
        assert [piece for piece in pieces if piece] == list(self.TEXT)

    def test_that_are_cut_off_end_in_one_replacement_character(self, tiny: Fleet) -> None:
        made = request(tiny.loaded().tokenizer.stream(), max_tokens=3)
        made.take(self.tokens(tiny, b"a\xf0\x9f"), frozenset(), 1000)
        assert (made.text, made.finish_reason) == ("a�", "length")

    def test_that_are_given_up_end_in_one_replacement_character(self, tiny: Fleet) -> None:
        made = request(tiny.loaded().tokenizer.stream())
        made.take(self.tokens(tiny, b"a\xe2\x82"), frozenset(), 1000)
        assert (made.text, made.abort(), made.text) == ("a", "�", "a�")

    def test_that_are_invalid_are_replaced_and_the_text_goes_on(self, tiny: Fleet) -> None:
        made = request(tiny.loaded().tokenizer.stream())
        made.take(self.tokens(tiny, b"a\xffb\xe2("), frozenset(), 1000)
        assert made.text == "a�b�("

    def test_can_be_stop_strings(self, tiny: Fleet) -> None:
        made = request(tiny.loaded().tokenizer.stream(), stop=("€",))
        made.take(self.tokens(tiny, self.TEXT.encode()), frozenset(), 1000)
        assert (made.text, made.finish_reason) == ("aé", "stop")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max_tokens": 0}, "max-tokens 0 is not possible; it is at least 1"),
        ({"temperature": -0.1}, "temperature -0.1"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"temperature": float("inf")}, "temperature inf"),
        ({"top_p": 0.0}, "top-p 0.0"),
        ({"top_p": 1.5}, "top-p 1.5"),
        ({"top_p": float("nan")}, "top-p nan"),
        ({"top_k": -1}, "top-k -1"),
        ({"stop": ("x", "")}, "empty stop string"),
    ],
)
def test_sampling_parameters_that_are_not_possible_are_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_sampling(SamplingParams(**wrong))
