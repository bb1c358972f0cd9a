"""Which functions people may call, and with what: those that only compute, in a time and memory that are known.

``interrupt()`` does not reach into one call, a string may have 4 GB that ``memory_limit`` does not count, and what ends
in an internal error of the engine ends the engine for everybody. So functions and arguments are refused that did one of
these (each measured on DuckDB 1.5.5, ``tests/support/attacks.py`` has the statements).
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import duckdb

from entrostat.wire.errors import QueryForbidden

MAX_QUANTILES = 200
"""100,000 quantiles in one call ran for a minute and could not be interrupted."""
MAX_LIST = 10_000
"""Elements of ``range(...)`` where it is a list. ``range(1000000000)`` took 8 GB in one call."""
MAX_COUNT = 1_000
"""N of ``max(x, n)``, ``approx_top_k(x, n)``: each group, or each row of a window, keeps so many."""
MAX_WILDCARDS, MAX_BACKTRACKING = 20, 3
"""Of % in a pattern; the lower one for ILIKE and for patterns with _, which try all places of each % anew:
``'%_a%_a%_a%_a%_a%_ab'`` on 16 kB of text ran on for ever."""

# One call of these can run for a minute, take gigabytes, or overrun the stack on deeply nested JSON.
_HEAVY = {
    "levenshtein", "damerau_levenshtein", "editdist3", "jaccard", "jaro_similarity", "jaro_winkler_similarity",
    "hamming", "mismatches", "repeat", "lpad", "rpad", "printf", "format", "bar", "list_resize", "array_resize",
    "array_cross_product", "set_bit", "bitstring", "bitstring_agg", "~~~",
    "json_structure", "json_group_structure", "json_merge_patch", "json_contains", "json_pretty",
}  # fmt: skip
# These look at the server, other sessions or the catalogue, or parse and run SQL.
_PRYING = re.compile(
    r"^(pg_|has_|inet_|icu_|__internal|json_serialize|json_deserialize|json_execute|col_description|obj_description|"
    r"shobj_description|current_(?!date$|localtime$|localtimestamp$|timestamp$|time$)|getvariable|getenv|session_user$|"
    r"user$|in_search_path|query|txid_|version$|parse_duckdb_log|write_|checkpoint|sleep|from_substrait|stats$|"
    r"get_block_size|create_sort_key|combine$|finalize$|vector_type|st_|error$|seq_|enable_|disable_|"
    r"(?:get_|set_|curr|next)val|nextval|currval|replace_type|make_type|cast_to_type|variant_|format_(?:pg_)?type$|map_to_pg_oid$)"
)
# The parser's own spelling of operators and syntax that are not in the list of functions.
_SYNTAX = {"->", "count_star", "list_value", "struct_pack", "row", "operator", "date_part", "array_extract", "grouping"}
_WINDOW = {
    "row_number", "rank", "dense_rank", "rank_dense", "percent_rank", "cume_dist", "ntile", "lag", "lead", "fill",
    "first_value", "last_value", "nth_value",
}  # fmt: skip
_QUANTILES = {"quantile", "quantile_cont", "quantile_disc", "approx_quantile", "reservoir_quantile"}
_BY_NAME = {"list_aggregate", "list_aggr", "array_aggregate", "array_aggr", "aggregate"}
_COUNT_AT = {"approx_top_k": 1, "reservoir_quantile": 2, "equi_width_bins": 2, "min": 1, "max": 1} | dict.fromkeys(
    ("arg_min", "arg_max", "argmin", "argmax", "min_by", "max_by", "arg_min_nulls_last", "arg_max_nulls_last"), 2
)
_LIKE = {"~~", "!~~", "like_escape", "not_like_escape"}
_ILIKE = {"~~*", "!~~*", "ilike_escape", "not_ilike_escape"}
_RANGES = {"range", "generate_series"}
# In the body of a lambda, over a list of lists: the rest would go through a list once for each element of another.
_IN_LAMBDA = {"list_value", "list_extract", "list_element", "array_extract", "array_value"}


def allowed_functions(parser: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """The names that may be called: what the engine says only computes, without the lists above."""
    rows = parser.execute(
        "select function_name from duckdb_functions() where function_type in ('scalar', 'aggregate', 'macro') "
        "group by function_name "
        "having bool_and(coalesce(stability, 'CONSISTENT') != 'VOLATILE' and not coalesce(has_side_effects, false))"
    ).fetchall()
    computing = {name for (name,) in rows if name not in _HEAVY and not _PRYING.match(name)}
    return frozenset(_SYNTAX | _WINDOW | computing)


def check_arguments(name: str, arguments: list[dict[str, Any]], allowed: frozenset[str]) -> None:
    """Refuse a call whose cost its arguments make unbounded, or that calls by name what is not ``allowed``.

    Raises:
        QueryForbidden: says what to write in its place.
    """
    if name in _BY_NAME and len(arguments) > 1:
        called = _text(arguments[1])
        if called is None:
            raise QueryForbidden(f"{name}: write the name of the aggregate as text")
        if called not in allowed:
            raise QueryForbidden(f"{name}: there is no aggregate {called!r} that may be called")
        check_arguments(called, [arguments[0], *arguments[2:]], allowed)
    if name in _QUANTILES:
        _check_quantiles(arguments)
    if name in _COUNT_AT and len(arguments) > _COUNT_AT[name]:
        count = _integer(arguments[_COUNT_AT[name]])
        if count is None or abs(count) > MAX_COUNT:
            raise QueryForbidden(f"{name}: write how many as a number of at most {MAX_COUNT}")
    if name in _LIKE | _ILIKE:
        _check_pattern(arguments, name in _ILIKE)
    if name in _RANGES:
        _check_range(name, arguments)


def check_lambda(body: object) -> None:
    """Refuse a lambda whose body goes through a list of its own for each element.

    Raises:
        QueryForbidden: says which part.
    """
    for node in _nodes(body):
        name = str(node.get("function_name", "")).lower()
        if node.get("class") == "LAMBDA":
            raise QueryForbidden("a lambda inside a lambda is not taken: use unnest and group by")
        if name.startswith(("list_", "array_")) and name not in _IN_LAMBDA:
            raise QueryForbidden(f"{name} inside a lambda is not taken: use unnest and group by")


def _nodes(tree: object) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(child)


def _check_quantiles(arguments: list[dict[str, Any]]) -> None:
    for argument in map(_without_casts, arguments[1:]):
        is_list = argument.get("function_name") in ("list_value", "list_pack")
        if is_list and len(arguments_of(argument)) <= MAX_QUANTILES:
            continue
        if argument.get("class") != "CONSTANT":
            raise QueryForbidden(f"write the quantiles as a number or a list of at most {MAX_QUANTILES} numbers")


def _check_pattern(arguments: list[dict[str, Any]], is_ilike: bool) -> None:
    pattern = _text(arguments[1]) if len(arguments) > 1 else None
    if pattern is None:
        raise QueryForbidden("write the pattern of LIKE as text, or use contains, starts_with, regexp_matches")
    most = MAX_BACKTRACKING if is_ilike or "_" in pattern else MAX_WILDCARDS
    if pattern.count("%") > most:
        raise QueryForbidden(f"a pattern with more than {most} % is not taken: use regexp_matches")


def _check_range(name: str, arguments: list[dict[str, Any]]) -> None:
    ends = [_integer(argument) for argument in arguments]
    if None not in ends and len(range(*ends[:3])) <= MAX_LIST:  # type: ignore[arg-type]  # None was looked for
        return
    raise QueryForbidden(
        f"{name}(...) as a list takes whole numbers, for at most {MAX_LIST} elements: FROM {name}(...) has no limit"
    )


def _without_casts(argument: dict[str, Any]) -> dict[str, Any]:
    while argument.get("class") == "CAST":
        argument = argument["child"]
    return argument


def _value(argument: dict[str, Any], is_kind: Callable[[str], bool]) -> object:
    constant = _without_casts(argument)
    value = constant.get("value") if constant.get("class") == "CONSTANT" else None
    if not isinstance(value, dict) or value.get("is_null") or not is_kind(str((value.get("type") or {}).get("id"))):
        return None
    found: object = value.get("value")
    return found


def _text(argument: dict[str, Any]) -> str | None:
    found = _value(argument, lambda kind: kind == "VARCHAR")
    return found if isinstance(found, str) else None


def _integer(argument: dict[str, Any]) -> int | None:
    found = _value(argument, lambda kind: kind.endswith(("INT", "INTEGER")))
    return found if isinstance(found, int) else None


def arguments_of(call: dict[str, Any]) -> list[dict[str, Any]]:
    """A call's arguments, as duckdb 1 and as duckdb 2 write them."""
    if "children" in call:
        return list(call["children"])
    return [argument["expression"] for argument in call["arguments"]]
