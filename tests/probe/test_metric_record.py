"""The event that says what the user's own metrics mean: once a key, worked out off the training thread."""

import json

import numpy as np
import pytest
import torch

from entrostat.probe import metric_record
from entrostat.probe.recorder import Recorder
from entrostat.wire import codec
from entrostat.wire.metric_names import naming

TRL_LOG = {"loss": 0.1, "entropy": 1.5, "kl": 0.01, "completions/mean_length": 7.0, "my/score": 3.0}


class Sink:
    """Keeps the work, so that a test can tell putting from doing."""

    def __init__(self):
        self.work = []

    handover = None

    def put(self, reduce, nbytes, what="step", record=None):
        self.work.append(reduce)

    def batches(self):
        return [codec.decode(codec.encode(reduce())) for reduce in self.work]

    def said(self):
        rows = [row for batch in self.batches() if "event" in batch for row in batch["event"].to_pylist()]
        return [json.loads(row["detail"]) for row in rows if row["kind"] == "metric_names"]

    def names(self):
        return [row["name"] for batch in self.batches() for row in batch.get("step_metric", _NONE).to_pylist()]


class _NONE:
    @staticmethod
    def to_pylist():
        return []


def test_a_key_is_explained_once_and_a_new_one_when_it_comes():
    sink = Sink()
    recorder = Recorder(sink)
    recorder.log(1, TRL_LOG)
    recorder.log(2, TRL_LOG)
    recorder.log(3, TRL_LOG | {"reward": 0.5})
    first, second = sink.said()

    assert first["dialect"] == "trl"
    assert first["mapped"] == {"entropy": "entropy_mean", "completions/mean_length": "length_mean"}
    assert list(first["differs"]) == ["kl"]
    assert first["own"] == ["loss"]
    assert first["unmapped"] == ["my/score"]
    assert second["mapped"] == {"reward": "reward_mean"}
    assert second["dialect"] == "trl"


def test_numbers_given_at_a_steps_end_are_explained_too():
    sink = Sink()
    recorder = Recorder(sink)
    recorder.end_step(1, {"actor/entropy": 1.0, "actor/pg_clipfrac": 0.1})

    assert sink.said()[0]["mapped"] == {"actor/entropy": "entropy_mean"}
    assert {"trainer/actor/entropy", "trainer/actor/pg_clipfrac"} <= set(sink.names())


def test_what_the_trainer_says_never_takes_the_place_of_what_was_measured():
    sink = Sink()
    Recorder(sink).log(1, TRL_LOG)

    assert set(sink.names()) == {f"trainer/{key}" for key in TRL_LOG}


def test_nested_numbers_and_scalars_of_numpy_and_torch_are_kept_under_their_own_name():
    sink = Sink()
    Recorder(sink).log(1, {"train": {"loss": np.float32(0.5), "x": torch.tensor(2)}, "text": "no", "nan": float("nan")})

    assert sink.names() == ["trainer/train/loss", "trainer/train/x"]
    assert sink.said()[0]["left_out"] == ["text", "nan"]


def test_a_key_without_a_number_at_first_is_explained_with_its_first_number():
    sink = Sink()
    recorder = Recorder(sink)
    recorder.metric_record.dialect = "trl"
    recorder.log(1, {"reward": None})
    recorder.log(2, {"reward": 0.5})
    recorder.log(3, {"reward": None})
    first, second = sink.said()

    assert (first["mapped"], first["left_out"]) == ({}, ["reward"])
    assert (second["mapped"], second["left_out"]) == ({"reward": "reward_mean"}, [])


@pytest.mark.parametrize(("num_keys", "num_explained", "num_events"), [(1, 20, 20), (100, 1000, 10)])
def test_a_loop_that_invents_keys_does_not_fill_the_record(num_keys, num_explained, num_events):
    sink = Sink()
    recorder = Recorder(sink)
    for step in range(30):
        recorder.log(step, {f"sample_{step}_{n}": 1.0 for n in range(num_keys)})
    said = sink.said()
    explained = [key for detail in said for key in detail["unmapped"]]

    assert len(explained) == len(set(explained)) == num_explained
    assert len(said) == num_events
    assert len(sink.names()) == 30 * num_keys  # kept all the same


def test_the_training_thread_does_not_look_anything_up(monkeypatch):
    looked_up = []
    monkeypatch.setattr(
        metric_record, "naming", lambda numbers, dialect: looked_up.append(numbers) or naming(numbers, dialect)
    )
    sink = Sink()
    recorder = Recorder(sink)
    for step in range(200):
        recorder.log(step, {f"group_{n}/name": float(n) for n in range(40)})

    assert looked_up == []
    assert len(sink.said()) == len(looked_up) == 1
