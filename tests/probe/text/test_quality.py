"""Form of responses against definitions in words, and answers that are the same when they mean the same."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import text_oracle as oracle

from entrostat.probe.text.quality import (
    AnswerFinder,
    answer_hash,
    has_cjk,
    is_repetitive,
    is_violation,
    normalised,
    words_of,
)

BOXED = AnswerFinder()
LATEX = st.lists(st.sampled_from(["\\boxed{", "\\boxed {", "}", "{", "\\{", "\\}", "\\", "x", " ", "1"]), max_size=14)


@pytest.mark.parametrize(
    ("text", "answers", "is_wrong"),
    [
        (r"so \boxed{7}.", ["7"], False),
        (r"\boxed{\frac{1}{2}}", [r"\frac{1}{2}"], False),
        (r"\boxed{\{1, 2\}}", [r"\{1,2\}"], False),
        ("no answer", [], True),
        (r"\boxed{1} or \boxed{2}", ["1", "2"], True),
        (r"\boxed{1} or \boxed{2", ["1", None], True),
        (r"\boxed{12", [None], True),
        (r"\boxed{ }", [None], True),
        (r"\boxed{\boxed{3}}", [r"\boxed{3}", "3"], True),
        (r"} \boxed{1}", ["1"], False),
    ],
)
def test_exactly_one_closed_box_is_in_form(text, answers, is_wrong):
    assert BOXED.answers(text) == answers
    assert is_violation(answers) == is_wrong


@given(parts=LATEX)
@settings(max_examples=300)
def test_boxes_are_those_of_a_character_by_character_count(parts):
    text = "".join(parts)

    expected = [None if box is None else (normalised(box) or None) for box in oracle.boxes(text)]
    assert BOXED.answers(text) == expected


def test_thousands_of_open_boxes_are_read_in_one_pass():
    answers = BOXED.answers("\\boxed{" * 20_000)

    assert len(answers) == 20_000


@pytest.mark.parametrize(
    ("pattern", "text", "answers"),
    [
        (r"<answer>(.*?)</answer>", "<answer>a\nb</answer>", ["ab"]),
        (r"(The|the) answer is (?P<answer>\d+)", "The answer is 12.", ["12"]),
        (r"#### \d+", "#### 12", ["####12"]),
        (r"(x)?y", "y", [None]),
    ],
)
def test_another_pattern_gives_its_named_group_its_first_or_all_of_it(pattern, text, answers):
    assert AnswerFinder(pattern).answers(text) == answers


def test_a_pattern_that_is_none_is_refused_by_name():
    with pytest.raises(ValueError, match=r"answer_pattern='\('"):
        AnswerFinder("(")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r" 7 ", "7"),
        ("$7$", "7"),
        ("7.", "7"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\text{Paris}", "Paris"),
        (r"\left( 1,\, 2 \right)", "(1,2)"),
        ("e\u0301", "\u00e9"),
    ],
)
def test_answers_that_mean_the_same_are_one_answer(one, other):
    assert answer_hash(BOXED.answers(f"\\boxed{{{one}}}")) == answer_hash(BOXED.answers(f"\\boxed{{{other}}}"))


def test_answers_that_differ_and_numbers_not_computed_stay_apart():
    found = {answer_hash([normalised(a)]) for a in ["1/2", "0.5", r"\leftarrow", "arrow", "A", "a", "10", "1"]}

    assert len(found) == 8


@given(text=st.text(min_size=1))
def test_the_last_answers_hash_fits_a_signed_column(text):
    number = answer_hash(["before", text, None])

    assert number == answer_hash([text])
    assert 0 <= number < 2**63


def test_without_an_answer_there_is_no_hash():
    assert answer_hash([None]) is None
    assert answer_hash([]) is None


@pytest.mark.parametrize("text", ["答案", "かな", "カナ", "ｶﾅ", "한국어", "ㄱ", "\U00020000", "﨎"])
def test_chinese_japanese_and_korean_letters_are_found(text):
    assert has_cjk(f"The answer is {text}.")


@pytest.mark.parametrize("text", ["Größe", "ответ", "αβγ ∑ ½ →", "，。（）｜▁", "<｜end▁of▁sentence｜>", "🙂", ""])
def test_other_scripts_and_east_asian_punctuation_are_not(text):
    assert not has_cjk(text)


def test_the_ranges_agree_with_unicodes_names_on_every_letter_there_is():
    letters = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) in ("Lo", "Ll")]
    wrong = [f"U+{ord(c):04X} {unicodedata.name(c, '')}" for c in letters if has_cjk(c) != oracle.has_cjk(c)]

    assert len(letters) > 100_000
    assert wrong == []


@given(words=st.lists(st.sampled_from("abc"), max_size=150) | st.lists(st.sampled_from("abcdefgh"), max_size=200))
@settings(max_examples=150)
def test_repetition_is_what_its_definition_says(words):
    assert is_repetitive(" ".join(words)) == oracle.is_repetitive(words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I am sure. " * 20, True),
        ("这个答案是对的。" * 12, True),
        ("ตอบว่าใช่" * 12, True),
        ("no" * 400, True),
        ("!" * 800, True),
        (" ".join(str(n) for n in range(400)), False),
        ("|" + "-" * 60 + "|", False),
        ("I am sure. " * 3, False),
        ("x = 1, so y = 2. " * 2, False),
        ("", False),
    ],
)
def test_loops_are_found_with_and_without_spaces_and_lists_are_not_loops(text, expected):
    assert is_repetitive(text) == expected


def test_saying_it_all_twice_is_not_repetition_and_three_times_is():
    solution = " ".join(f"Step {n}: we add {n * 7} to {n * 13}." for n in range(12))

    assert not is_repetitive(f"{solution} {solution}")
    assert is_repetitive(f"{solution} {solution} {solution}")


def test_a_loop_at_the_end_of_a_long_response_is_found():
    assert is_repetitive(" ".join(str(n) for n in range(5000)) + " and so on" * 20)


def test_words_of_scripts_without_spaces_are_letters():
    assert words_of("答案 is 12.5!!") == ["答", "案", "is", "12", ".", "5", "!!"]
    assert words_of("a" * 20) == ["a" * 16, "a" * 4]
