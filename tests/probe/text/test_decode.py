"""Texts are the tokenizer's own, and nothing is shared with it."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import texts as made
from support import tiny_trl

from entrostat.probe.text.decode import texts_of

BYTE_LEVEL, BYTE_FALLBACK = made.byte_level(), made.byte_fallback()


@given(text=st.text(max_size=60))
@settings(max_examples=60)
def test_a_response_reads_as_the_tokenizer_decodes_it(text):
    tokenizer = made.of_transformers(BYTE_LEVEL)
    ids = [*tokenizer.encode(text), tokenizer.eos_token_id]

    assert texts_of(tokenizer).response(ids) == tokenizer.decode(ids, skip_special_tokens=True) == text


# '▁' tokenizers put the space of the first word into its token.
@given(text=st.sampled_from(made.PROSE[:2]) | st.text(st.characters(max_codepoint=0x7F), min_size=1, max_size=60))
@settings(max_examples=60)
@pytest.mark.parametrize(
    ("backend", "before"), [(BYTE_LEVEL, ""), (BYTE_FALLBACK, " ")], ids=["byte level", "byte fallback"]
)
def test_tokens_one_after_the_other_are_the_text(backend, before, text):
    texts = texts_of(backend)

    assert "".join(texts.token(i) for i in backend.encode(text).ids) == before + text


def test_a_token_that_is_part_of_a_character_says_so():
    texts = texts_of(BYTE_LEVEL)
    ids = BYTE_LEVEL.encode("𝕏").ids

    assert len(ids) > 1
    assert {c for i in ids for c in texts.token(i)} == {"\ufffd"}
    assert texts.response(ids) == "𝕏"


@pytest.mark.parametrize(
    ("backend", "text", "expected"),
    [
        (made.word_pieces(), "also so wait, 3", [" al", "so", " so", " wait", " ,", " 3"]),
        (tiny_trl.tokenizer().backend_tokenizer, "b c", [" b", " c"]),
    ],
    ids=["word pieces", "word level"],
)
def test_the_start_of_a_word_has_its_space_whatever_marks_it(backend, text, expected):
    texts = texts_of(backend)

    assert [texts.token(i) for i in backend.encode(text).ids] == expected


def test_special_tokens_are_left_out_of_responses_and_readable_as_tokens():
    tokenizer = made.of_transformers(BYTE_LEVEL)

    assert texts_of(tokenizer).response([tokenizer.eos_token_id]) == ""
    assert texts_of(tokenizer).token(tokenizer.eos_token_id) == "<|end|>"


class Slow:
    """A tokenizer in Python, with state that a call changes."""

    def __init__(self):
        self.calls = []

    def decode(self, ids, skip_special_tokens=False):
        self.calls.append(ids)
        return "".join(chr(i) for i in ids if i or not skip_special_tokens)


def test_a_slow_tokenizer_is_copied_and_the_trainers_own_is_never_called():
    tokenizer = Slow()
    texts = texts_of(tokenizer)

    assert texts.response([97, 0, 98]) == "ab"
    assert texts.token(0) == "\x00"
    assert tokenizer.calls == []


def test_a_function_is_used_as_it_is_and_something_else_is_refused():
    assert texts_of(made.spell).response([3, 4]) == " Wait jump"
    with pytest.raises(TypeError, match="tokenizer is a int"):
        texts_of(7)


def test_decoding_while_the_trainer_encodes_disturbs_neither():
    tokenizer = made.of_transformers(made.byte_level())
    texts = texts_of(tokenizer)
    ids = tokenizer.encode(" ".join(made.PROSE))
    expected = tokenizer.decode(ids)
    stop, failures, rounds = threading.Event(), [], []

    def decode():
        try:
            while not stop.is_set():
                assert texts.response(ids) == expected
                rounds.append(texts.token(len(rounds) % 300))
        except Exception as error:  # noqa: BLE001  whatever it is, the test asserts that there is none
            failures.append(error)

    background = threading.Thread(target=decode)
    background.start()
    # Truncation and padding are what changes a fast tokenizer's state, and is refused while another thread reads it.
    for length in range(600):
        tokenizer(made.PROSE, truncation=True, max_length=1 + length % 40, padding=bool(length % 2))
    stop.set()
    background.join()

    assert failures == []
    assert len(rounds) > 10
