"""CSV that people open in a spreadsheet."""

import csv
import io

import pyarrow as pa

from entrostat.dashboard.spreadsheets import csv_bytes

FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1"]


def test_a_text_that_begins_like_a_formula_stays_a_text():
    table = pa.table({"note": [*FORMULAS, "plain = 1", None, ""], "value": [-0.5] * 9, "many": [[1]] * 9})
    rows = list(csv.reader(io.StringIO(csv_bytes(table).decode(), newline="")))

    assert rows[0] == ["note", "value"]
    assert [row[0] for row in rows[1:]] == [*(f"'{text}" for text in FORMULAS), "plain = 1", "", ""]
    assert {row[1] for row in rows[1:]} == {"-0.5"}


def test_so_does_a_columns_name_and_nothing_is_a_table_too():
    assert csv_bytes(pa.table({"=1+1": pa.array([], pa.string())})).decode().strip() == '"\'=1+1"'
