"""Texts in real trainings: read from the trainer's own tokenizer, sent only as far as was asked for."""

import json

import pytest
import torch
from support import texts as made
from support import tiny_trl
from support.spool import spooled, values_of
from transformers import PreTrainedTokenizerFast

import entrostat
from entrostat.probe.text.categories import category_of
from entrostat.wire.declared.text import CATEGORIES, SIGNALS

NO_SERVER = "http://127.0.0.1:9"  # the discard port: nobody answers, everything stays in the spool
NAMES = {signal.name for signal in SIGNALS}


def trained(folder, kind="grpo", trainer=None, **options):
    """(tables, openings, the texts of every completion as TRL hands them to reward functions, step by step)."""
    trainer = trainer or tiny_trl.trainer(folder / "out", kind)
    generated = []
    original = trainer._calculate_rewards

    def calculate_rewards(inputs, prompts, completions, completion_ids_list):
        generated.append(list(completions))
        return original(inputs, prompts, completions, completion_ids_list)

    trainer._calculate_rewards = calculate_rewards
    entrostat.attach(trainer, url=NO_SERVER, directory=folder / "spool", tokens="all", **options)
    trainer.train()
    return *spooled(folder / "spool"), generated


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_a_trl_run_has_the_rates_of_its_own_completions(tmp_path, kind):
    tables, openings, completions = trained(tmp_path, kind, answer_pattern="a")

    values = values_of(tables["step_metric"], 2)
    assert set(values) >= NAMES
    texts = completions[1]
    assert values["format_violation_rate"] == pytest.approx(sum(t.count("a") != 1 for t in texts) / len(texts))
    assert values["language_mixing_rate"] == 0
    sequence = tables["sequence"][tables["sequence"].step == 2]
    assert sequence.answer.notna().sum() == sum("a" in t for t in texts)
    assert sequence.answer.nunique() <= 1
    assert openings[0]["settings"]["answer_pattern"] == "a"


def test_token_rows_have_their_category_and_no_text(tmp_path):
    tables, _, _ = trained(tmp_path)

    token = tables["token"]
    assert token.text.isna().all()
    words = {i: f" {word}" for i, word in enumerate(tiny_trl.WORDS)}
    assert token.category.tolist() == [CATEGORIES[category_of(words[i])] for i in token.token_id]


def test_keep_text_sends_the_text_of_each_tokens_row(tmp_path):
    tables, openings, completions = trained(tmp_path, keep_text=True)

    token = tables["token"][tables["token"].step == 1].sort_values(["seq", "pos"])
    said = token[~token.text.isin([" <eos>", " <pad>"])].groupby("seq").text.sum().str.strip()
    assert sorted(said) == sorted(text for text in completions[0] if text)
    assert openings[0]["settings"]["keep_text"] is True


def test_switched_off_the_family_leaves_no_trace_and_copies_no_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setattr("entrostat.trainer_adapters.trl_policy.texts_of", lambda _: pytest.fail("copied"))
    tables, _, _ = trained(tmp_path, without=["text"])

    assert not NAMES & set(tables["step_metric"].name)
    assert tables["token"].category.isna().all()
    assert tables["sequence"].answer.isna().all()
    absent = tables["event"][tables["event"].kind == "absent"].message.iloc[0]
    assert "the family 'text' is switched off: format_violation_rate" in absent


def test_a_tokenizer_that_cannot_be_copied_costs_the_family_and_says_so(tmp_path, monkeypatch):
    def broken(_tokenizer):
        raise RuntimeError("planted")

    monkeypatch.setattr("entrostat.trainer_adapters.trl_policy.texts_of", broken)
    tables, _, _ = trained(tmp_path)

    assert not NAMES & set(tables["step_metric"].name)
    messages = tables["event"].set_index("kind").message
    assert "copying the tokenizer failed: RuntimeError: planted" in messages["warning"]
    assert "no tokenizer was at hand: format_violation_rate" in messages["absent"]


def test_a_processors_text_tokenizer_is_the_one_that_is_copied(tmp_path):
    from transformers import ProcessorMixin

    class Processor(ProcessorMixin):
        def __init__(self, tokenizer):
            self.tokenizer = tokenizer

    trainer = tiny_trl.trainer(tmp_path / "out")
    trainer.processing_class = Processor(trainer.processing_class)
    handle = entrostat.attach(trainer, url=NO_SERVER, directory=tmp_path / "spool")

    assert handle.boundary.tap.texts().response([2, 3, 1]) == "a b"


def test_a_pattern_that_is_none_is_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match="answer_pattern="):
        entrostat.attach(tiny_trl.trainer(tmp_path / "out"), directory=tmp_path / "spool", answer_pattern="(")


RESPONSES = [" so Wait\\boxed{7}", " 12你", " but", " \\boxed{7} \\boxed{8}"]


def loop(folder, tokenizer, prompts=("7?", "7?", "你?", "7?"), encode=None, **options):
    """One step of a plain loop over ``RESPONSES``; its tables."""
    rows = [encode(text) for text in RESPONSES]
    width = max(map(len, rows))
    labels = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    prompt_rows = [encode(p) for p in prompts] if prompts else None
    torch.manual_seed(0)
    with entrostat.Probe(
        "loop", url=NO_SERVER, directory=folder / "spool", tokens="all", tokenizer=tokenizer, **options
    ) as probe:
        probe.observe(
            labels=labels, mask=mask, logits=torch.randn(len(rows), width, int(labels.max()) + 1),
            prompt_ids=None if prompts is None else torch.tensor(
                [[-1] * (max(map(len, prompt_rows)) - len(p)) + p for p in prompt_rows]
            ),
        )  # fmt: skip
        probe.end_step(1)
    return spooled(folder / "spool")[0]


def as_characters(text):
    return [ord(c) % 50_000 for c in text]


def from_characters(ids):
    return "".join(map(chr, ids))


@pytest.mark.parametrize("kind", ["function", "fast tokenizer"])
def test_a_plain_loop_reads_with_a_function_or_a_tokenizer(tmp_path, kind):
    fast: PreTrainedTokenizerFast = made.of_transformers(made.byte_level())
    tokenizer, encode = {"function": (from_characters, as_characters), "fast tokenizer": (fast, fast.encode)}[kind]
    tables = loop(tmp_path, tokenizer, encode=encode, keep_text=True)

    values = values_of(tables["step_metric"], 1)
    assert values["format_violation_rate"] == 3 / 4
    assert values["language_mixing_rate"] == 1 / 4
    assert values["repetition_rate"] == 0
    sequence = tables["sequence"]
    assert sequence.language_mixing.tolist() == [False, True, False, False]
    assert sequence.answer.isna().tolist() == [False, True, True, False]
    assert sequence.answer[0] != sequence.answer[3]
    assert tables["token"][tables["token"].seq == 0].text.sum() == RESPONSES[0]


def test_a_plain_loop_without_prompts_lacks_language_mixing_alone(tmp_path):
    tables = loop(tmp_path, from_characters, prompts=None, encode=as_characters)

    assert set(values_of(tables["step_metric"], 1)) >= NAMES - {"language_mixing_rate"}
    assert "language_mixing_rate" not in values_of(tables["step_metric"], 1)


def test_a_probe_refuses_what_is_no_tokenizer_at_once(tmp_path):
    with pytest.raises(TypeError, match="give a tokenizer or a function"):
        entrostat.Probe("loop", url=NO_SERVER, directory=tmp_path, tokenizer=7)


def test_no_prompt_and_no_text_leaves_the_machine_unless_asked(tmp_path):
    tables = loop(tmp_path, from_characters, encode=as_characters)

    everything = json.dumps({name: table.to_dict(orient="list") for name, table in tables.items()}, default=str)
    assert not any(text.strip() in everything for text in ("boxed", "你", "7?"))
