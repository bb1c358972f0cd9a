"""The stream of an engine's own process, on a stand-in of runner V1: what lands in the spool, and under which step."""

from types import SimpleNamespace

import pytest
import torch
from support.spool import spooled, values_of

from entrostat.trainer_adapters.vllm.rollout_stream import RolloutStream, Token, parts_of
from entrostat.wire.errors import AttachError
from entrostat.wire.signals import FAMILIES

CONFIG = SimpleNamespace(
    model_config=SimpleNamespace(model="tiny", dtype=torch.float32),
    parallel_config=SimpleNamespace(tensor_parallel_size=1, data_parallel_rank=0),
)


def request(row, ids, **extra):
    return (row, SimpleNamespace(temperature=0.5, extra_args=extra or None), [1, 2], ids)


@pytest.fixture
def stream(tmp_path, monkeypatch):
    monkeypatch.setenv("ENTROSTAT_RUN", "mine")
    monkeypatch.setenv("ENTROSTAT_DIR", str(tmp_path))
    monkeypatch.setenv("ENTROSTAT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("entrostat.trainer_adapters.vllm.rollout_stream._SEND_EVERY_S", 3600.0)  # by hand here
    made = RolloutStream(CONFIG, torch.device("cpu"), False)
    yield made
    if made._sender is not None:
        made._sender.close(0.1)


def change(*added, removed=()):
    return SimpleNamespace(removed=list(removed), added=list(added), moved=[])


def logits(*seeds):
    return torch.stack([torch.randn(7, generator=torch.Generator().manual_seed(s)) for s in seeds]) * 3


def expected(*rows):
    """The signals of rows of logits, sampled at temperature 0.5."""
    logp = (torch.stack(rows).double() / 0.5).log_softmax(-1)
    top = logp.topk(3).values.mean(0).tolist()
    return {
        "rollout_entropy_mean": -(logp.exp() * logp).sum(-1).mean().item(), "rollout_tokens": len(rows),
        **{f"rollout_rank_logp_{n}": value for n, value in enumerate(top, 1)},
    }  # fmt: skip


def sent(stream, folder):
    stream.send()
    stream._sender.close(0.1)
    return spooled(folder)


def test_signals_are_of_the_step_that_the_requests_name(stream, tmp_path):
    a, b = [], []
    stream.update_state(change(request(0, a, entrostat_step=3), request(1, b, entrostat_step=4)))
    one, two = logits(0, 1), logits(2, 3)
    assert stream.apply(one) is one
    a.append(1), b.append(2)
    stream.update_state(None)
    assert stream.apply(two) is two
    a.append(1), b.append(2)

    tables, openings = sent(stream, tmp_path)

    assert values_of(tables["step_metric"], 3) == pytest.approx(expected(one[0], two[0]), rel=1e-5)
    assert values_of(tables["step_metric"], 4) == pytest.approx(expected(one[1], two[1]), rel=1e-5)
    assert set(tables["step_metric"].name) == {s.name for s in FAMILIES["rollout"]}
    assert [(o["run_id"], o["producer"], o["trainer"]) for o in openings] == [("mine", "rollout", "vllm")]
    assert stream.failure is None


def test_a_request_that_names_none_counts_for_the_last_step_named(stream, tmp_path):
    before, named, after = [], [], []
    for ids, extra in ((before, {}), (named, {"entrostat_step": 7}), (after, {})):
        stream.update_state(change(request(0, ids, **extra)))
        stream.apply(logits(0))
        ids.append(1)

    tables, _ = sent(stream, tmp_path)

    assert values_of(tables["step_metric"], 0)["rollout_tokens"] == 1
    assert values_of(tables["step_metric"], 7)["rollout_tokens"] == 2


def test_pieces_of_a_prompt_are_no_tokens_also_when_a_sending_lies_between(stream, tmp_path):
    ids = []
    stream.update_state(change(request(0, ids, entrostat_step=1)))
    stream.apply(logits(0))  # a piece: nothing is drawn
    stream.send()
    last = logits(1)
    stream.apply(last)
    stream.send()  # not drawn yet: it waits
    ids.append(4)

    tables, _ = sent(stream, tmp_path)

    assert tables["step_metric"].name.is_unique  # one sending had something
    assert values_of(tables["step_metric"], 1) == pytest.approx(expected(last[0]), rel=1e-5)


def test_under_v2_the_lengths_tell_a_piece_of_a_prompt(stream, tmp_path):
    stream._states = SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=torch.tensor([[1, 2, 3, 0]], dtype=torch.int32)),
        prompt_len=SimpleNamespace(np=[3]), prefill_len=SimpleNamespace(np=[3]),
    )  # fmt: skip
    assert stream.add_request(0, request(0, [], entrostat_step=1)[1]) is True
    given = [logits(0), logits(1)]
    for num_visible, rows in zip((2, 3), given, strict=True):
        fed = torch.tensor([num_visible])
        stream.apply(rows, SimpleNamespace(idx_mapping_np=[0], seq_lens_upper_bound_np=[num_visible], input_ids=fed))

    tables, _ = sent(stream, tmp_path)

    assert values_of(tables["step_metric"], 1) == pytest.approx(expected(given[1][0]), rel=1e-5)


def test_what_was_measured_and_never_drawn_is_forgotten(stream, tmp_path, monkeypatch):
    ids = []
    stream.update_state(change(request(0, ids), request(1, [9], entrostat_rollout=0)))
    stream.apply(logits(0, 1))
    monkeypatch.setattr("entrostat.trainer_adapters.vllm.rollout_stream._FORGET_AFTER_S", -1.0)

    tables, _ = sent(stream, tmp_path)

    assert "step_metric" not in tables
    assert stream._open == {}


def test_parts_of_two_sendings_add_up(stream, tmp_path):
    ids, all_rows = [], [logits(0), logits(1), logits(2)]
    stream.update_state(change(request(0, ids, entrostat_step=1)))
    for rows in all_rows:
        stream.apply(rows)
        ids.append(1)
        if rows is all_rows[1]:
            stream.send()

    tables, _ = sent(stream, tmp_path)

    states = tables["step_metric"].query("name == 'rollout_entropy_mean'").state
    count, total = (sum(s[i] for s in states) for i in (0, 1))
    assert len(states) == 2
    assert total / count == pytest.approx(expected(*(r[0] for r in all_rows))["rollout_entropy_mean"], rel=1e-5)


def test_a_row_that_says_nothing_is_left_out():
    sound, unsound = Token(0, 1.0, [-0.1, -3.0], 0.0), Token(0, float("nan"), [float("nan")] * 2, 0.0)
    masked = Token(0, 0.0, [0.0, -float("inf")], 0.0)  # one candidate alone: there is no second

    found = {name: part.value for name, part in parts_of([sound, unsound, masked]).items()}

    assert found == {
        "rollout_entropy_mean": 0.5, "rollout_tokens": 2, "rollout_rank_logp_1": -0.05, "rollout_rank_logp_2": -3.0,
    }  # fmt: skip


def test_all_engines_of_a_run_and_one_after_a_restart_are_one_session(stream, tmp_path):
    for _ in range(2):
        made = RolloutStream(CONFIG, torch.device("cpu"), False)
        made.update_state(change(request(0, [])))
        made.apply(logits(0))
        made._sender.close(0.1)

    _, openings = spooled(tmp_path)

    assert len({o["session_id"] for o in openings}) == 1
    assert len(openings) == 2


def test_without_a_run_the_engine_does_not_start_and_a_step_that_is_none_is_refused(monkeypatch):
    monkeypatch.delenv("ENTROSTAT_RUN", raising=False)
    with pytest.raises(AttachError, match="set ENTROSTAT_RUN"):
        RolloutStream(CONFIG, torch.device("cpu"), False)
    RolloutStream.validate_params(SimpleNamespace(extra_args={"entrostat_step": 12}))
    for wrong in (-1, "12", 2**31, 1.5):
        with pytest.raises(ValueError, match="entrostat_step="):
            RolloutStream.validate_params(SimpleNamespace(extra_args={"entrostat_step": wrong}))
