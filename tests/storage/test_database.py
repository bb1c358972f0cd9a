"""The file is opened as the only database there is, whatever its name, and once."""

import duckdb
import pytest

from entrostat.storage.database import IN_MEMORY, Database
from entrostat.storage.errors import DatabaseHeld


@pytest.fixture
def database(tmp_path):
    found = Database(str(tmp_path / "it's a run.duckdb"))
    yield found
    found.close()


def test_a_name_with_a_quote_is_a_name(database, tmp_path):
    database.close()
    with duckdb.connect(str(tmp_path / "it's a run.duckdb"), read_only=True) as file:
        assert file.execute("select count(*) from raw.run").fetchall() == [(0,)]


def test_no_other_database_is_beside_it(database):
    assert database.rows("select database_name from duckdb_databases() where not internal") == [("entrostat",)]


def test_what_does_not_fit_in_memory_goes_beside_the_file(database, tmp_path):
    [(folder,)] = database.rows("select value from duckdb_settings() where name = 'temp_directory'")
    assert folder == str(tmp_path / "it's a run.duckdb.tmp")


def test_one_process_opens_it_once(database):
    with pytest.raises(DatabaseHeld, match="this process has"):
        Database(database.path)
    assert database.rows("select count(*) from run") == [(0,)]


def test_in_memory_it_works_alike():
    database = Database(IN_MEMORY)
    assert database.rows("select count(*) from run") == [(0,)]
    database.close()
