"""Whatever a body holds, decoding it gives rows as agreed or a refusal by name: no other error, no crash, no memory."""

import contextlib
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from support.faults import FAULTS
from support.hostile import bombs, crafted, damaged, sound_tables, unpacked, zstd

from entrostat.wire import strict_json
from entrostat.wire.codec import decode, decode_json, encode
from entrostat.wire.errors import MalformedBatch, TooLarge, UnknownVersion
from entrostat.wire.tables import TABLES

REFUSALS = (MalformedBatch, TooLarge, UnknownVersion)
SOUND = encode(sound_tables())
RAW = unpacked(SOUND)
EXAMPLES = (FAULTS or 10) * 40


def readable(tables):
    """Every value of what was let through can be read."""
    for name, table in tables.items():
        assert table.schema.equals(TABLES[name])
        table.validate(full=True)
        table.to_pylist()


def test_the_body_that_is_damaged_here_is_a_sound_one():
    assert set(decode(SOUND)) == set(TABLES)


@settings(max_examples=EXAMPLES)
@given(damaged(RAW))
def test_damage_inside_the_compression_is_refused_or_harmless(raw):
    with contextlib.suppress(*REFUSALS):
        readable(decode(zstd(raw)))


@settings(max_examples=EXAMPLES // 2)
@given(damaged(SOUND))
def test_damage_of_the_compression_is_refused_or_harmless(body):
    with contextlib.suppress(*REFUSALS):
        readable(decode(body))


@pytest.mark.parametrize(("title", "body"), crafted().items())
def test_what_our_encoder_would_never_write_is_refused(title, body):
    with pytest.raises(REFUSALS):
        decode(body)


_PEAK = """
import resource, sys
from entrostat.wire.codec import decode
from entrostat.wire.errors import EntrostatError
with open(sys.argv[1], "rb") as file:
    body = file.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decode(body, max_bytes=8 * 2**20)
    said = "taken"
except EntrostatError as error:
    said = type(error).__name__
print(said, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(("title", "body"), bombs(256 * 2**20).items())
def test_a_bomb_takes_little_more_memory_than_it_may(tmp_path, title, body):
    assert len(body) < 2**20
    (tmp_path / "body").write_bytes(body)
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PEAK, str(tmp_path / "body")], capture_output=True, text=True, check=True
    )
    said, grown_kb = done.stdout.split()

    assert said in ("TooLarge", "MalformedBatch")
    assert int(grown_kb) < 96 * 1024


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"step_metric": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
        (b'{"step_metric": [], "step_metric": [{"step": 1, "name": "a", "value": 1}]}', "more than once"),
        (b'{"step_metric": [{"step": 1, "step": 2, "name": "a", "value": 1}]}', "more than once"),
        (b'{"step_metric": [{"step": ' + b"9" * 5000 + b', "name": "a", "value": 1}]}', "number"),
        (b'{"step_metric": [{"step": 18446744073709551616, "name": "a", "value": 1}]}', "step"),
        (b'{"step_metric": [{"step": 1, "name": "\\ud800", "value": 1}]}', "hex escape"),
        (b'{"step_metric": [{"step": 1, "name": "\xff", "value": 1}]}', "unicode"),
        ('{"step_metric": []}'.encode("utf-16"), "JSON"),
        (b"null", "object"),
        (b"", "JSON"),
    ],
)  # fmt: skip
def test_json_that_others_would_read_differently_is_refused(text, reason):
    with pytest.raises(MalformedBatch, match=reason):
        decode_json(text)


def test_a_number_that_is_none_is_a_measurement_all_the_same():
    rows = decode_json(b'{"step_metric": [{"step": 1, "name": "loss", "value": NaN}]}')["step_metric"]

    assert str(rows["state"][0].as_py()) == "[nan]"
    with pytest.raises(ValueError, match="column 2"):
        strict_json.loads("[NaN]", allow_nan=False)


def test_all_columns_of_a_sound_body_have_bytes_of_their_own():
    """The check against columns that share bytes holds for what is sent: sliced, chunked, empty, with nulls."""
    tables = sound_tables(3000)
    sliced = {name: pa.concat_tables([t.slice(7, 1000), t.slice(1, 0), t.slice(3, 1)]) for name, t in tables.items()}
    assert {name: t.num_rows for name, t in decode(encode(sliced)).items()} == dict.fromkeys(TABLES, 1001)
