"""What a start can find in the data folder: each trouble is a sentence and exit status 2, what is harmless is none."""

import ctypes
import os
import resource
import signal
import stat

import duckdb
import pytest

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24


def as_somebody():
    """Root may write anywhere; without these it is bound by permissions as anyone is."""
    if os.geteuid() == 0:
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def refusal(server):
    """The one line that a server says which does not start."""
    with pytest.raises(AssertionError, match="did not start"):
        server.start()
    assert server.process.returncode == 2
    lines = server.log.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_missing_folder_is_made(own_server, tmp_path):
    own_server(data=tmp_path / "new" / "deeper").start()

    assert (tmp_path / "new" / "deeper" / "entrostat.duckdb").exists()


@pytest.fixture
def locked_folder(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    yield folder
    folder.chmod(stat.S_IRWXU)


def test_a_read_only_folder(own_server, locked_folder):
    said = refusal(own_server(data=locked_folder, before=as_somebody))

    assert str(locked_folder) in said
    assert "cannot be written by this user" in said


def test_a_folder_that_cannot_be_made(own_server, locked_folder):
    said = refusal(own_server(data=locked_folder / "data", before=as_somebody))

    assert "cannot make the folder" in said
    assert "--data" in said


def test_a_database_of_another_user(own_server, tmp_path):
    server = own_server(before=as_somebody).start()
    server.stop()
    path = tmp_path / "data" / "entrostat.duckdb"
    path.chmod(0)
    server.log_path.write_text("")

    assert "cannot be written by this user" in refusal(server)
    path.chmod(0o644)


def test_a_folder_that_is_a_file(own_server, tmp_path):
    (tmp_path / "file").write_text("")

    assert "cannot make the folder" in refusal(own_server(data=tmp_path / "file" / "data"))


def test_a_file_that_is_no_database(own_server, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "entrostat.duckdb").write_bytes(b"no database" * 1000)

    assert "cannot read" in refusal(own_server())


def without_room():
    """A file beyond 4 KiB cannot be written, as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def test_a_disk_without_room_at_the_start(own_server, tmp_path):
    server = own_server().start()
    stream = server.open()
    assert server.post(stream, 0, {"step_metric": [{"step": 1, "name": "n", "value": 1}]}).status_code == 200
    server.kill()
    server.log_path.write_text("")
    server.before = without_room
    said = refusal(server)
    server.before = None
    server.start()

    assert "cannot" in said
    assert "File too large" in said
    assert server.ask("select count(*) from batch") == [[1]]


def test_a_database_that_another_server_holds(server, own_server):
    assert "another process holds" in refusal(own_server(data=server.data))


def test_what_a_killed_server_leaves_is_no_hindrance(own_server, tmp_path):
    server = own_server().start()
    server.post(server.open(), 0, {"step_metric": [{"step": 1, "name": "n", "value": 1}]})
    server.kill()
    spilled = tmp_path / "data" / "entrostat.duckdb.tmp"
    spilled.mkdir(exist_ok=True)
    (spilled / "duckdb_temp_storage-0.tmp").write_bytes(b"half a block")
    server.start()

    assert server.ask("select count(*) from batch") == [[1]]


def test_a_clock_that_was_set_back_is_said(own_server, tmp_path):
    server = own_server(ENTROSTAT_SERVER_LOG_FORMAT="json").start()
    server.post(server.open(), 0, {"step_metric": [{"step": 1, "name": "n", "value": 1}]})
    server.stop()
    assert server.events("clock_set_back") == []
    with duckdb.connect(str(tmp_path / "data" / "entrostat.duckdb")) as connection:
        connection.execute("update raw.batch set received = received + interval 1 day")
    server.start()

    assert server.events("clock_set_back")[0]["behind_s"] == pytest.approx(86_400, abs=600)
    assert server.post(server.open(), 1, {"step_metric": [{"step": 2, "name": "n", "value": 1}]}).status_code == 200


def test_a_wrong_setting_of_the_log(own_server):
    assert "log_format='xml'" in refusal(own_server(ENTROSTAT_SERVER_LOG_FORMAT="xml"))
