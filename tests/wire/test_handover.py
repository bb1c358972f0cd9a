"""A step outlives its process from the moment its training thread's call returns, and becomes rows once."""

import errno
import json
import os

import pyarrow as pa
import pytest

from entrostat.wire import handover, recovery
from entrostat.wire.codec import decode, encode, encode_plain
from entrostat.wire.handover import Handover, left_in
from entrostat.wire.spool import SpoolStream, pending_streams
from entrostat.wire.tables import STEP_METRIC

ID = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def _own_disk(request, monkeypatch):
    """Wherever the tests' folder may be."""
    if "file_system" not in request.node.name and "not_local" not in request.node.name:
        monkeypatch.setattr(handover, "is_local", lambda directory: True)


def pieces(*texts):
    return [memoryview(bytearray(text)) for text in texts]


def metric(step):
    rows = [{"step": step, "name": "x", "merge": "last", "state": [1.0]}]
    return {"step_metric": pa.Table.from_pylist(rows, schema=STEP_METRIC)}


def steps(tables):
    return tables["step_metric"]["step"].to_pylist()


def restore(document, data):
    said = json.loads(document)
    assert bytes(data) == said["data"].encode()
    return metric(said["step"])


@pytest.fixture
def stream(tmp_path, opening):
    made = SpoolStream.create(tmp_path, opening, ID)
    yield made
    made.release()


def hand_over(given, step, data="data"):
    given.keep(pieces(data.encode()))
    return given.seal(json.dumps({"step": step, "data": data}).encode())


def adopted(tmp_path, restore=restore):
    """Batches by number, and what could not be made one."""
    stream = SpoolStream.adopt(tmp_path / "run" / ID, restore)
    try:
        return {seq: steps(decode(stream.read(seq))) for seq, _ in stream.pending()}, stream.problems
    finally:
        stream.release()


def test_what_was_kept_is_read_back_while_the_caller_changes_its_own(tmp_path):
    given, mine = Handover(tmp_path), pieces(b"one", b"", b"three")
    first, second = given.keep(mine), given.keep(pieces(b"more"))
    mine[0][:] = b"xxx"

    assert bytes(first.read()) == b"onethree"
    assert bytes(second.read()) == b"more"


def test_a_step_is_there_for_others_once_it_is_sealed_and_until_it_is_freed(tmp_path):
    given = Handover(tmp_path)
    given.keep(pieces(b"abc"))
    assert left_in(tmp_path) == []

    record = given.seal(b"about")
    (left,) = left_in(tmp_path)
    document, data = left.read()
    assert (document, bytes(data), left.number, left.size) == (b"about", b"abc", 1, 8)

    record.free()
    assert left_in(tmp_path) == []


def test_files_are_used_again_and_nothing_of_the_step_before_is_taken_for_the_next(tmp_path):
    given = Handover(tmp_path)
    for step in range(5):
        hand_over(given, step, "long" * 100).free()
    assert len(list(tmp_path.iterdir())) == 1

    given.keep(pieces(b"short"))
    assert left_in(tmp_path) == []
    given.seal(b"about")
    assert [bytes(left.read()[1]) for left in left_in(tmp_path)] == [b"short"]


def test_steps_that_pile_up_are_found_in_their_order_and_go_with_the_stream(tmp_path):
    given = Handover(tmp_path)
    records = [hand_over(given, step) for step in range(20)]
    assert [json.loads(left.read()[0])["step"] for left in left_in(tmp_path)] == list(range(20))

    for record in records:
        record.free()
    assert 0 < len(list(tmp_path.iterdir())) < 10
    given.keep(pieces(b"of a step that never ended"))
    given.close()
    assert list(tmp_path.iterdir()) == []


def test_a_step_of_which_a_part_is_in_memory_is_read_but_does_not_outlive_us(tmp_path):
    given = Handover(tmp_path)
    span = given.keep(pieces(b"abc"))
    record = given.seal(None)

    assert bytes(span.read()) == b"abc"
    assert left_in(tmp_path) == []
    record.free()


def test_a_disk_that_refuses_is_left_alone_and_nothing_raises(tmp_path, monkeypatch):
    given = Handover(tmp_path)
    given.keep(pieces(b"abc"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    assert given.keep(pieces(b"def")) is None
    assert given.seal(b"about").number == 0
    monkeypatch.undo()
    assert given.keep(pieces(b"def")) is None
    assert not given.is_on
    assert given.trouble.errno == errno.ENOSPC
    assert left_in(tmp_path) == []


def test_a_write_that_is_cut_short_goes_on(tmp_path, monkeypatch):
    write = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, given, at: write(fd, [given[0][:2]], at))

    assert bytes(Handover(tmp_path).keep(pieces(b"abcdef", b"ghi")).read()) == b"abcdefghi"


def test_what_a_host_was_told_before_it_was_booted_anew_is_not_believed(tmp_path, monkeypatch):
    hand_over(Handover(tmp_path), 1)
    assert len(left_in(tmp_path)) == 1
    monkeypatch.setattr(handover, "boot", lambda: b"another boot id!")

    assert left_in(tmp_path) == []


def test_without_the_boots_name_and_in_a_forked_child_nothing_is_kept(tmp_path, monkeypatch):
    given = Handover(tmp_path)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert given.keep(pieces(b"abc")) is None
    monkeypatch.undo()
    given.keep(pieces(b"abc"))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert given.seal(b"about") is None, "the file is the parent's, who has not sealed it"
    monkeypatch.undo()
    given.seal(b"about")
    assert len(left_in(tmp_path)) == 1
    monkeypatch.setattr(handover, "boot", lambda: None)
    assert Handover(tmp_path).keep(pieces(b"abc")) is None


MOUNTS = """22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:35 / /home rw,relatime shared:1 - nfs4 server:/home rw
41 40 0:36 / /home/anna/my\\040disk rw - xfs /dev/sdb rw
42 22 0:37 / /data rw - fuse.sshfs anna@far:/ rw
43 22 0:38 / /dev/shm rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("directory", "expected"),
    [("/", True), ("/tmp/x", True), ("/homeless", True), ("/home", False), ("/home/anna/runs", False),
     ("/home/anna/my disk/runs", True), ("/data/x", False), ("/dev/shm/x", True)],
)  # fmt: skip
def test_a_file_system_of_another_host_is_known(tmp_path, directory, expected):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)

    assert handover.is_local(directory, mounts) is expected


def test_where_the_system_does_not_say_a_directory_is_not_local(tmp_path):
    assert not handover.is_local(tmp_path, tmp_path / "none")
    (tmp_path / "odd").write_text("nothing of the kind")
    assert not handover.is_local(tmp_path, tmp_path / "odd")


def test_on_a_file_system_of_another_host_training_never_waits_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(handover, "is_local", lambda directory: False)
    given = Handover(tmp_path)

    assert given.keep(pieces(b"abc")) is None
    assert given.seal(b"about") is None
    assert given.trouble is None
    assert list(tmp_path.iterdir()) == []


def test_steps_that_were_never_reduced_become_batches_behind_those_there_were(stream, tmp_path):
    given = Handover(stream.path)
    stream.write(0, encode(metric(1)))
    stream.append(1, encode_plain(metric(2)), of_step=1)  # killed between the tail and the wiping
    for step in (2, 3, 4):
        hand_over(given, step)
    given.keep(pieces(b"of a step that never ended"))
    stream.release()
    [found] = pending_streams(tmp_path)
    assert found.num_batches >= 4

    assert adopted(tmp_path) == ({0: [1], 1: [2], 2: [3], 3: [4]}, [])
    assert adopted(tmp_path) == ({0: [1], 1: [2], 2: [3], 3: [4]}, [])
    assert left_in(stream.path) == []


def test_a_number_that_was_used_for_a_batch_sent_from_memory_is_not_used_again(stream, tmp_path):
    hand_over(Handover(stream.path), 7)
    stream.count(5)
    stream.release()

    assert adopted(tmp_path) == ({5: [7]}, [])


@pytest.mark.parametrize("stopped_at", ["write_whole", "unlink"])
def test_who_is_stopped_while_making_the_batch_makes_it_once(stream, tmp_path, monkeypatch, stopped_at):
    given = Handover(stream.path)
    hand_over(given, 1)
    hand_over(given, 2)
    stream.release()

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(*((recovery, stopped_at) if stopped_at == "write_whole" else (recovery.Path, stopped_at)), stop)
    with pytest.raises(KeyboardInterrupt):
        SpoolStream.adopt(stream.path, restore)
    monkeypatch.undo()

    assert adopted(tmp_path) == ({0: [1], 1: [2]}, [])


def test_without_torch_it_says_so_and_the_steps_wait_for_who_has_it(stream, tmp_path):
    stream.append(0, encode_plain(metric(1)))
    hand_over(Handover(stream.path), 2)
    stream.release()

    batches, [problem] = adopted(tmp_path, restore=None)
    assert batches == {0: [1]}
    assert "1 steps were handed over" in problem
    held = SpoolStream.adopt(stream.path)
    held.delete(0)  # the server has it now, and knows its number
    held.release()

    assert adopted(tmp_path) == ({1: [2]}, [])


def test_a_step_whose_rows_no_disk_took_is_made_again_with_its_batch_and_once(stream, tmp_path):
    given = Handover(stream.path)
    records = [hand_over(given, step) for step in (1, 2, 3)]
    stream.append(4, encode_plain(metric(2)), of_step=2)  # the disk took the second one's rows alone
    records[0].becomes(4)
    records[2].becomes(4)
    stream.count(5)
    stream.release()

    assert adopted(tmp_path, restore=None)[0] == {}, "the batch waits for its steps"
    assert adopted(tmp_path) == ({4: [2, 1, 3]}, [])
    assert adopted(tmp_path) == ({4: [2, 1, 3]}, [])


def test_a_step_that_is_in_its_batch_already_is_not_made_again(stream, tmp_path):
    hand_over(Handover(stream.path), 1).becomes(0)
    stream.write(0, encode(metric(1)))
    stream.release()

    assert adopted(tmp_path) == ({0: [1]}, [])
    assert left_in(stream.path) == []


def test_a_file_that_cannot_be_wiped_is_removed(tmp_path, monkeypatch):
    record = hand_over(Handover(tmp_path), 1)

    def refuse(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(handover.StepFile, "wipe", refuse)
    record.free()
    assert left_in(tmp_path) == []


def test_a_step_that_cannot_be_reduced_is_told_of_and_holds_nobody_up(stream, tmp_path):
    given = Handover(stream.path)
    given.keep(pieces(b"abc"))
    given.seal(b"not a document")
    hand_over(given, 2)
    stream.release()

    batches, [problem] = adopted(tmp_path)
    assert batches == {0: [2]}
    assert "cannot be reduced: JSONDecodeError" in problem
    assert len(left_in(stream.path)) == 1
