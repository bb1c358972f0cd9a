"""Made-up statements against the guard, judged by the engine itself: what passes reads the public views and no more.

``make faults`` looks for longer, and elsewhere each time.
"""

import contextlib
import re

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.attacks import REFUSED
from support.faults import FAULTS
from support.sql_grammar import VIEWS, selects

from entrostat.storage.sql_guard import Guard
from entrostat.storage.store import Store
from entrostat.storage.views import PUBLIC_VIEWS
from entrostat.wire.errors import EntrostatError, QueryError

EXAMPLES = FAULTS * 25 or 120
LONG = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
CANARY = "canary-7b1e"


class Glass:
    """A database without any lock, in which whatever is read beside the public views shows.

    The views are made of constants, so the engine's own list of the tables that a statement reads is empty for all
    that may pass; tables, files, variables and settings beside them hold the canary.
    """

    def __init__(self, folder):
        self.canary_file = f"{folder}/{CANARY}.csv"
        with open(self.canary_file, "w") as file:
            file.write(f"a\n{CANARY}\n")
        self.connection = duckdb.connect(f"{folder}/glass.duckdb")
        row = "'t' as run, 1 as step, 't' as name, 0.5::double as value, [1, 2] as ids"
        for statement in (
            "create schema raw",
            f"create table raw.run as select '{CANARY}' as run, 9 as step",
            f"create table secret as select '{CANARY}' as run, 9 as step",
            f'create table raw."{CANARY}" (a int)',
            "create sequence raw.numbers",
            f"set variable canary = '{CANARY}'",
            *(f"create view {view} as select {row} union all select {row}" for view in VIEWS),
        ):
            self.connection.execute(statement)
        self.before = self.state()

    def state(self):
        return self.connection.execute(
            "select (select list(r) from raw.run r), (select list(s) from secret s), "
            "(select list(table_name order by 1) from duckdb_tables()), "
            "(select list(sql order by 1) from duckdb_views()), "
            "(select last_value from duckdb_sequences()), (select count(*) from duckdb_settings() where value is null)"
        ).fetchall()

    def tables_of(self, sql):
        """What the engine says the statement reads; nothing where it cannot be bound."""
        try:
            return self.connection.get_table_names(sql, qualified=True)
        except (duckdb.FatalException, duckdb.InternalException):
            raise  # it would end the engine for everybody
        except duckdb.Error:
            return set()

    def shown(self, sql):
        """All that the statement says: its rows, or its error."""
        try:
            return str(self.connection.execute(sql).fetchmany(1000))
        except (duckdb.FatalException, duckdb.InternalException):
            raise  # it would end the engine for everybody
        except (duckdb.Error, RuntimeError) as error:
            return str(error)


@pytest.fixture(scope="module")
def glass(tmp_path_factory):
    return Glass(tmp_path_factory.mktemp("glass"))


@pytest.fixture(scope="module")
def glass_guard():
    with_few_views = Guard(frozenset(VIEWS))
    yield with_few_views
    with_few_views.close()


@pytest.fixture(scope="module")
def guard():
    made = Guard(PUBLIC_VIEWS)
    yield made
    made.close()


def passes(guard, sql):
    """Whether the guard lets it through; whatever it raises must be one of ours."""
    try:
        guard.check(sql)
    except QueryError:
        return False
    return True


@LONG
@given(sql=selects())
def test_what_passes_reads_the_public_views_only_and_changes_nothing(glass, glass_guard, sql):
    sql = sql.replace("{canary}", glass.canary_file)
    if passes(glass_guard, sql):
        assert glass.tables_of(sql) == set()
        assert CANARY not in glass.shown(sql)
        assert glass.state() == glass.before


def test_the_grammar_reaches_what_it_should(glass, glass_guard):
    """Of 150 statements many are refused, many pass, and many of these run to their end."""
    counts = {"refused": 0, "passed": 0, "ran": 0}

    @settings(max_examples=150, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(sql=selects())
    def count(sql):
        is_let_in = passes(glass_guard, sql)
        counts["passed" if is_let_in else "refused"] += 1
        counts["ran"] += is_let_in and glass.shown(sql).startswith("[")

    count()
    assert min(counts.values()) > 15, counts


def test_the_glass_shows_what_a_guard_would_have_to_refuse(glass):
    """The oracle itself: each kind of forbidden read is seen by it."""
    for sql in ("from raw.run", "select (select run from secret)", "from query('from raw.run')"):
        assert glass.tables_of(sql), sql
    for sql in (f"from '{glass.canary_file}'", "select getvariable('canary')", "from duckdb_tables()", "from raw.run"):
        assert CANARY in glass.shown(sql), sql


# Mutations of the attacks.

_TOKENS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|\s+|\w+|.", re.DOTALL)
_SPACES = st.sampled_from([" ", "\n", "\t", "\r\n", " /* x */ ", " -- x\n", "\u00a0", "  "])
_WRAPS = st.sampled_from(
    ["{}", " {};", "({})", "from ({})", "select * from ({}) x", "with z as ({}) from z", "{} union all select 1",
     "select exists ({})", "select ({})", "select 1 where 1 in ({})", "with recursive z as ({}) select 1"]
)  # fmt: skip
_WRAPS_OF_A_WORD = st.sampled_from(["{}", " {};", "{};{}"])  # `select (begin)` reads a column, which there is not
SHORT = [sql for sqls in REFUSED.values() for sql in sqls if len(sql) < 300]


@st.composite
def mutated(draw):
    """An attack written differently: other spaces, comments, capitals, wrapped into another statement."""
    pieces = []
    attack = draw(st.sampled_from(SHORT))
    for token in _TOKENS.findall(attack):
        if token.isspace():
            pieces.append(draw(_SPACES))
        elif token[0] in "'\"-/":
            pieces.append(token)
        else:
            pieces.append(draw(st.sampled_from([token.lower(), token.upper(), token.swapcase()])))
    text = "".join(pieces)
    wrap = draw(_WRAPS if " " in attack else _WRAPS_OF_A_WORD)
    return wrap.replace("{}", text if "--" not in text else f"{text}\n")


@LONG
@given(sql=mutated())
def test_an_attack_written_differently_is_refused_too(guard, sql):
    assert not passes(guard, sql)


@LONG
@given(sql=st.text(max_size=200) | st.lists(st.sampled_from(SHORT), min_size=2, max_size=3).map(" ".join))
def test_whatever_is_sent_the_guard_says_no_in_our_words(guard, sql):
    passes(guard, sql)


@pytest.fixture(scope="module")
def live_store():
    with Store("duckdb::memory:", query_timeout_s=5.0, memory_limit_mb=512) as opened:
        yield opened


@settings(LONG, max_examples=max(EXAMPLES // 4, 20))
@given(sql=selects())
def test_on_a_real_store_nothing_changes_and_every_error_is_ours(live_store, sql):
    count = "select (select count(*) from raw.meta), (select count(*) from raw.bin), (select count(*) from raw.run)"
    before = live_store._database.rows(count)
    with contextlib.suppress(EntrostatError):
        live_store.query(sql, 100)
    assert live_store.failure is None
    assert live_store._database.rows(count) == before
