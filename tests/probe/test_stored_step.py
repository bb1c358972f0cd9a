"""A step that another process reduces has the rows that its own would have made."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st
from support.steps import captured, random_step

from entrostat.probe.columns import Columns, packed, tensors_of
from entrostat.probe.definitions import Rollout, Settings
from entrostat.probe.recorder import Recorder
from entrostat.probe.reduce import Reducer
from entrostat.probe.stored_step import restore
from entrostat.wire import handover
from entrostat.wire.handover import Handover, left_in

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@pytest.fixture(autouse=True)
def _own_disk(monkeypatch):
    """Wherever the tests' folder may be."""
    monkeypatch.setattr(handover, "is_local", lambda directory: True)


class Sink:
    """Reduces nothing: as if the process were killed first."""

    def __init__(self, folder):
        self.handover, self.work, self.records = Handover(folder), [], []

    def put(self, reduce, nbytes, what="step", record=None):
        if what == "step":
            self.work.append(reduce)
            self.records.append(record)


def run_step(recorder, rollout=True, metrics=None):
    step = random_step(0)
    for part in (step[:4], step[4:]):
        recorder.add(captured(part, keep=recorder.keep))
    if rollout:
        recorder.add_rollout(Rollout(np.array([1.0, np.nan, 0.0] * 4), np.repeat(np.arange(3), 4)))
    recorder.end_step(7, metrics or {"loss": 0.5}, {"scope_tokens": 3.0})


def comparable(tables):
    """Rows without what differs by nature: the time it took, and what push says."""
    found = {name: table.to_pylist() for name, table in tables.items() if name != "event"}
    found["step_metric"] = [
        (r["name"], r["merge"], r["state"]) for r in found["step_metric"] if r["name"] != "reduce_ms"
    ]
    return found


@pytest.mark.parametrize("from_responses", [False, True])
def test_the_rows_are_those_that_its_own_process_would_have_made(tmp_path, from_responses):
    sink = Sink(tmp_path)
    settings = Settings(group_size=4, num_ranks=2, without=frozenset({"mismatch"}))
    recorder = Recorder(sink, Reducer(settings, num_candidates=2), rewards_from_responses=from_responses)
    run_step(recorder, rollout=not from_responses)
    (left,) = left_in(tmp_path)

    restored = restore(*left.read())
    own = sink.work[0]()

    assert repr(comparable(restored)) == repr(comparable(own))  # as text: NaN is no number that equals itself
    assert len(own["token"]) > 20
    [said] = [row["message"] for row in restored["event"].to_pylist()]
    assert "killed" in said
    assert "texts" not in said


def test_numbers_alone_are_not_worth_the_training_threads_time(tmp_path):
    sink = Sink(tmp_path)
    Recorder(sink).end_step(3, {"loss": np.float32(0.25)})

    assert left_in(tmp_path) == []
    rows = {row["name"]: row["state"] for row in sink.work[0]()["step_metric"].to_pylist()}
    assert rows["trainer/loss"] == [0.25]


def test_a_run_whose_texts_were_read_is_told_that_these_are_absent(tmp_path):
    recorder = Recorder(Sink(tmp_path))
    recorder.reducer.reader = object()
    run_step(recorder)
    (left,) = left_in(tmp_path)

    assert "texts is absent" in restore(*left.read())["event"].to_pylist()[-1]["message"]


def test_each_step_has_its_own_copies_and_the_trainers_tensors_may_change(tmp_path):
    sink = Sink(tmp_path)
    recorder = Recorder(sink, Reducer(Settings(group_size=4)))
    run_step(recorder)
    run_step(recorder, metrics={"loss": 1.5})
    first, second = (work() for work in sink.work)

    assert first["token"].drop(["step"]) == second["token"].drop(["step"])
    assert [r.number for r in sink.records] == [1, 2]


class _Event:
    """What a GPU's copy is waited for by."""

    def __init__(self, has_arrived):
        self.has_arrived, self.was_waited_for = has_arrived, False

    def query(self):
        return self.has_arrived

    def synchronize(self):
        self.was_waited_for = True


@pytest.mark.parametrize("has_arrived", [True, False])
def test_what_is_still_on_its_way_from_a_gpu_is_not_waited_for(tmp_path, has_arrived):
    sink, event = Sink(tmp_path), _Event(has_arrived)
    recorder = Recorder(sink, Reducer(Settings(group_size=4)))
    recorder.add(replace(captured(random_step(0)), ready=event))
    recorder.end_step(1)

    assert not event.was_waited_for
    assert len(left_in(tmp_path)) == has_arrived
    assert len(sink.work[0]()["token"]) > 20
    assert event.was_waited_for is not has_arrived


def test_a_document_of_another_version_is_refused(tmp_path):
    with pytest.raises(ValueError, match="another version"):
        restore(b'{"version": 99}\n{}\n', memoryview(b""))


@drawn(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), max_size=5))
def test_tensors_come_back_as_they_were(tmp_path_factory, shapes):
    random = torch.Generator().manual_seed(0)
    tensors = {f"t{n}": (torch.randn(shape, generator=random) * 3).to(dtype) for n, (dtype, shape) in enumerate(shapes)}
    given = Handover(tmp_path_factory.mktemp("x"))
    given.keep([memoryview(b"before")])
    pieces, pattern, sizes = packed(tensors)
    columns = Columns(pattern, sizes, given.keep(pieces))
    given.seal(b"{}")
    (left,) = left_in(given._directory)

    data = left.read()[1][columns.span.start - handover.DATA_AT :]
    for found in (columns.read(), tensors_of(pattern, sizes, data)):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor)
    given.close()


def test_what_is_not_contiguous_is_kept_as_it_looks():
    tensor = torch.arange(6, dtype=torch.int16).reshape(2, 3).T
    (piece,), pattern, sizes = packed({"x": tensor})

    assert torch.equal(tensors_of(pattern, sizes, memoryview(piece.tobytes()))["x"], tensor)


@pytest.mark.parametrize(("dtype", "sizes", "words"), [("float32", [3], "4 bytes of 12"), ("Tensor", [1], "no dtype")])
def test_a_document_that_does_not_fit_its_data_is_refused(dtype, sizes, words):
    with pytest.raises(ValueError, match=words):
        tensors_of((("x", dtype, 1),), sizes, memoryview(b"1234"))


def test_a_document_without_its_numbers_is_refused(tmp_path):
    run_step(Recorder(Sink(tmp_path)))
    (left,) = left_in(tmp_path)
    said, data = left.read()
    with pytest.raises(ValueError, match="ends before its numbers do"):
        restore(said[: said.index(b"\n") + 1 + 16], data)
