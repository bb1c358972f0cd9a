"""Kinds of tokens: the paper's examples, the decisions, the table by token id."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrostat.probe.text.categories import Categories, category_of
from entrostat.probe.text.decode import Texts
from entrostat.probe.text.words import LOGICAL_WORDS, METACOGNITIVE_WORDS
from entrostat.wire.declared.text import CATEGORIES


def kind(text):
    return CATEGORIES[category_of(text)]


@pytest.mark.parametrize(
    ("expected", "texts"),
    [
        ("formal", ["1", " *", "*", "+"]),
        ("logical", [" but", " so", " however"]),
        ("metacognitive", [" alternatively", " wait", " check"]),
        ("semantic", [" jump", " john", " she"]),
    ],
)
def test_the_papers_own_examples(expected, texts):
    assert {kind(text) for text in texts} == {expected}


@pytest.mark.parametrize(
    ("expected", "texts"),
    [
        (
            "formal",
            ["42", "3.", "²", "½", "٣", "=", " ≤", "∑", "→", "(", "})", "$", " \\(", "\\frac", "frac", " \\cdot"],
        ),
        ("formal", ["x", " y", "α", " θ", "ℝ", "𝑥", " (x", "2x", "^"]),
        ("semantic", ["", " ", "\n\n", ".", ",\n", "**", "**:", "###", "<|im_end|>", "\ufffd", "'s", " a", " I", "A"]),
        ("logical", ["So", " SO", "\n\nSo", " Therefore,", " If"]),
        ("metacognitive", ["Wait", "Wait,", " Hmm", ' "Wait', " perhaps"]),
        ("semantic", ["so", "check", "##so", "ing", " left", " times", " 你好", " aber"]),
    ],
)
def test_the_decisions(expected, texts):
    assert {text: kind(text) for text in texts} == dict.fromkeys(texts, expected)


@pytest.mark.parametrize(
    ("words", "expected"), [(LOGICAL_WORDS, "logical"), (METACOGNITIVE_WORDS, "metacognitive")], ids=["log", "meta"]
)
def test_every_listed_word_is_its_kind_after_a_space_and_with_a_capital(words, expected):
    assert {kind(f" {word}") for word in words} == {expected}
    assert {kind(word.capitalize()) for word in words} == {expected}
    assert {kind(word) for word in words} == {"semantic"}


@given(text=st.text())
def test_every_text_has_one_kind(text):
    assert 0 <= category_of(text) < len(CATEGORIES)


@given(st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=5))
def test_the_table_gives_what_each_tokens_text_gives_and_reads_each_text_once(batches):
    texts = [" so", " wait", "1", " jump", "x", "."]
    asked = []

    def raw(ids):
        asked.append(ids[0])
        return "".join(texts[i % len(texts)] for i in ids)

    categories = Categories(Texts(raw, raw))
    for ids in batches:
        found = categories.of(np.array(ids, np.int64))
        assert found.tolist() == [category_of(texts[i % len(texts)]) for i in ids]

    assert len(asked) == 2 * len(set(asked))
