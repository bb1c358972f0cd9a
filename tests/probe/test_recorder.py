"""A step's rows: as the wire wants them, and adding up to the step's own values."""

import numpy as np
import pytest
from support.steps import captured, random_step

from entrostat.probe.definitions import Rollout, Settings
from entrostat.probe.recorder import Recorder
from entrostat.probe.reduce import Reducer
from entrostat.wire import codec
from entrostat.wire.bins import edges_of
from entrostat.wire.mergeable import Part


class Kept:
    """A sink that does the work at once and keeps the tables."""

    def __init__(self):
        self.batches = []

    handover = None

    def put(self, reduce, nbytes, what="step", record=None):
        assert nbytes > 0
        self.batches.append(reduce())


@pytest.fixture
def tables():
    sink = Kept()
    recorder = Recorder(sink, Reducer(Settings(group_size=4)))
    step = random_step(0, num_prompts=4)
    recorder.begin_step()
    recorder.add(captured(step[:8]))
    recorder.add(captured(step[8:]))
    recorder.add_rollout(Rollout(np.array([r["reward"] for r in step]), np.array([r["prompt"] for r in step])))
    recorder.end_step(7, {"loss": 0.5, "broken": float("nan"), "name": "text", "flag": True})
    return sink.batches[0], step


def values_of(rows):
    return {r["name"]: Part(r["merge"], tuple(r["state"])).value for r in rows.to_pylist()}


def test_what_a_step_leaves_passes_every_check_of_the_wire(tables):
    rows, _ = tables

    decoded = codec.decode(codec.encode(rows))

    assert set(decoded) == {"step_metric", "histogram", "profile", "sequence", "token", "event"}
    assert set(decoded["token"]["step"].to_pylist()) == {7}


def test_token_rows_recompute_the_steps_mean_entropy_and_covariance(tables):
    rows, _ = tables
    values = values_of(rows["step_metric"])
    token = rows["token"].to_pandas()

    assert np.average(token.entropy, weights=1 / token.prob) == pytest.approx(values["entropy_mean"], rel=1e-6)
    assert token["cov"].mean() == pytest.approx(values["cov_mean"], abs=1e-7)
    assert token.top_logps.str[0].max() <= 0


def test_tokens_carry_the_rollouts_log_prob_as_it_was_given_and_none_where_it_is_unknown(tables):
    rows, step = tables
    token = rows["token"]

    assert 0 < token["rollout_logp"].null_count < token.num_rows
    for seq, pos, found in zip(*(token[name].to_pylist() for name in ("seq", "pos", "rollout_logp")), strict=True):
        given = step[seq]["rollout"][pos]
        assert found == (None if np.isnan(given) else np.float32(given)), (seq, pos)


def test_sequence_rows_carry_what_each_response_was(tables):
    rows, step = tables
    sequence = rows["sequence"].to_pandas()

    assert sequence.length.tolist() == [len(r["logp"]) for r in step]
    assert sequence.reward.tolist() == [r["reward"] for r in step]
    assert sequence.mean_logp.to_numpy() == pytest.approx([np.mean(r["logp"]) for r in step], rel=1e-6)
    assert sequence.prompt.tolist() == [r["prompt"] for r in step]


def test_tokens_point_at_their_response_and_position(tables):
    rows, step = tables
    token = rows["token"].to_pandas()

    for row in token.itertuples():
        assert step[row.seq]["ids"][row.pos] == row.token_id
        assert step[row.seq]["logp"][row.pos] == pytest.approx(row.logp, rel=1e-6)


def test_histograms_count_every_token_once_within_its_bin(tables):
    rows, step = tables
    histogram = rows["histogram"].to_pandas()
    entropy = histogram[histogram.name == "entropy"]

    assert entropy["count"].sum() == sum(len(r["logp"]) for r in step)
    for row in entropy.itertuples():
        low, high = edges_of(row.bin)
        assert low * row.count <= row.total <= high * row.count


def test_the_users_numbers_arrive_under_their_prefix_and_only_finite_ones(tables):
    values = values_of(tables[0]["step_metric"])

    assert values["trainer/loss"] == 0.5
    assert not [name for name in values if name.startswith("trainer/") and name != "trainer/loss"]


def test_a_step_reports_its_own_time_and_the_probes_share_of_it(tables):
    values = values_of(tables[0]["step_metric"])

    assert values["step_s"] > 0
    assert 0 <= values["probe_share"] < 1
    assert values["wall_time_s"] > 1.7e9


def test_a_step_without_micro_batches_still_reports_its_time():
    sink = Kept()
    recorder = Recorder(sink)

    recorder.end_step(1, {"loss": 1.0})

    assert "trainer/loss" in values_of(sink.batches[0]["step_metric"])


def test_an_event_carries_its_values_as_json():
    sink = Kept()

    Recorder(sink).event("note", "hello", 3, answer=42)

    row = codec.decode(codec.encode(sink.batches[0]))["event"].to_pylist()[0]
    assert (row["kind"], row["message"], row["step"], row["detail"]) == ("note", "hello", 3, '{"answer":42}')
