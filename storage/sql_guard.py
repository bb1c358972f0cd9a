"""What people may ask: exactly one SELECT, over the public views, with functions that only compute.

DuckDB says of itself that SQL is code and that there is no boundary of privilege inside the process. So the statement
is parsed by DuckDB (in a database of our own without tables or data), and its tree is held to lists: what is not on
them is refused. The engine's own locks (``database.py``) and the read-only transaction (``query.py``) come on top.
"""

import json
import threading
from typing import Any

import duckdb

from entrostat.storage.sql_functions import allowed_functions, arguments_of, check_arguments, check_lambda
from entrostat.wire.errors import QueryError, QueryForbidden

MAX_CHARS = 100_000
MAX_DEPTH = 200
"""Of brackets: 50,000 conditions in a row took the binder 6 s, deep nesting costs it stack."""

MAX_LEVELS = 500
"""Of the parsed statement: walking takes a frame a level, and Python's own bound is what others in the process set."""
_TOO_DEEP = "the statement is nested too deep: split it with WITH"
_TABLE_FUNCTIONS = {"range", "generate_series", "unnest"}
_FROM_KINDS = {"BASE_TABLE", "TABLE_FUNCTION", "SUBQUERY", "JOIN", "EXPRESSION_LIST", "EMPTY", "PIVOT"}
_NODE_KINDS = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_CALLS_WITHOUT_BRACKETS = [
    [name] for name in ("user", "current_user", "session_user", "current_role", "current_catalog", "current_schema")
]
_MODIFIERS = {"ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER"}


class Guard:
    """Holds statements to the lists. May be used from any thread.

    Args:
        tables: the names that may be read from.
    """

    def __init__(self, tables: frozenset[str]) -> None:
        self._tables = tables
        self._parser = duckdb.connect(
            ":memory:", config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        )
        self._lock = threading.Lock()
        self._functions = allowed_functions(self._parser)
        for setting in ("enable_external_access = false", "threads = 1", "lock_configuration = true"):
            self._parser.execute(f"set {setting}")

    def check(self, sql: str) -> None:
        """Return only if ``sql`` may be run.

        Raises:
            QueryForbidden: it is not one SELECT over the public views; says what was found.
            QueryError: it cannot be parsed.
        """
        if len(sql) > MAX_CHARS:
            raise QueryForbidden(f"the statement has {len(sql)} characters, at most {MAX_CHARS} are taken")
        if _depth(sql) > MAX_DEPTH:
            raise QueryForbidden(f"brackets are nested more than {MAX_DEPTH} deep")
        try:
            statements = self._parsed(sql)
            if len(statements) != 1:
                raise QueryForbidden(f"send one statement at a time, found {len(statements)}")
            self._query(statements[0]["node"], frozenset())
        except RecursionError:
            raise QueryForbidden(_TOO_DEEP) from None

    def close(self) -> None:
        """Let go of the parser."""
        self._parser.close()

    def _parsed(self, sql: str) -> list[dict[str, Any]]:
        try:
            with self._lock:
                text = self._parser.execute("select json_serialize_sql(?::varchar)", [sql]).fetchall()[0][0]
        except duckdb.Error as error:
            raise QueryError(f"the statement cannot be read: {error}") from error
        document = json.loads(text)
        if _levels(document) > MAX_LEVELS:
            raise QueryForbidden(_TOO_DEEP)
        if document.get("error"):
            message = document.get("error_message", "")
            if "Only SELECT" in message:
                raise QueryForbidden("only SELECT statements are taken (and PIVOT with its values given)")
            raise QueryError(f"the statement cannot be read: {message}")
        statements: list[dict[str, Any]] = document["statements"]
        return statements

    def _query(self, node: dict[str, Any], scope: frozenset[str]) -> None:
        """A query node. Its common table expressions come into scope one after the other, for it and its inside."""
        if node.get("type") not in _NODE_KINDS:
            raise QueryForbidden(f"{node.get('type')} is not taken")
        for entry in (node.get("cte_map") or {}).get("map", []):
            name = entry["key"].lower()
            self._refuse_taken(name)
            body = _body_of(entry["value"])
            is_recursive = body.get("type") == "RECURSIVE_CTE_NODE"
            self._query(body, scope | {name} if is_recursive else scope)
            self._walk({k: v for k, v in entry["value"].items() if k not in ("query", "query_node")}, scope)
            scope = scope | {name}
        if node["type"] in ("RECURSIVE_CTE_NODE", "CTE_NODE") and node.get("cte_name"):
            name = node["cte_name"].lower()
            self._refuse_taken(name)
            scope = scope | {name}
        for modifier in node.get("modifiers") or []:
            if modifier.get("type") not in _MODIFIERS:
                raise QueryForbidden(f"{modifier.get('type')} is not taken")
        self._walk({key: value for key, value in node.items() if key != "cte_map"}, scope, is_inside=True)

    def _refuse_taken(self, name: str) -> None:
        if name in self._tables:
            raise QueryForbidden(f"WITH {name}: the name belongs to a view, take another one")

    def _walk(self, tree: Any, scope: frozenset[str], is_inside: bool = False) -> None:
        if isinstance(tree, list):
            for item in tree:
                self._walk(item, scope)
            return
        if not isinstance(tree, dict):
            return
        kind = tree.get("type")
        if not is_inside and isinstance(kind, str) and kind.endswith("_NODE"):
            self._query(tree, scope)
            return
        if "function_name" in tree or kind == "FUNCTION":
            self._function(tree)
        if kind == "LAMBDA":
            check_lambda(tree.get("expr"))
        if kind == "COLUMN_REF" and [part.lower() for part in tree.get("column_names", [])] in _CALLS_WITHOUT_BRACKETS:
            raise QueryForbidden(f"the function {tree['column_names'][0]} is not taken: it does more than compute")
        if tree.get("id") == "VARIANT":
            raise QueryForbidden("the type VARIANT is not taken: use JSON")
        for side in ("left", "right", "source") if kind in ("JOIN", "PIVOT") else ():
            if isinstance(tree.get(side), dict) and "class" not in tree[side]:
                self._refuse_kind(tree[side].get("type"))
        if tree.get("from_table") is not None:
            self._from(tree["from_table"], scope)
        elif isinstance(kind, str) and "class" not in tree and ("table_name" in tree or kind in _FROM_KINDS):
            self._from_fields(tree, scope)
        if tree.get("class") in ("PARAMETER", "DEFAULT", "POSITIONAL_REFERENCE"):
            raise QueryForbidden("parameters and positions ($1, ?, #1) are not taken: write the value or the name")
        for key, value in tree.items():
            if key == "function" and kind == "TABLE_FUNCTION":  # its name is looked at above, its arguments are free
                self._walk({k: v for k, v in value.items() if k not in ("function_name", "type")}, scope)
            elif key != "from_table":
                self._walk(value, scope)

    def _from(self, table: dict[str, Any], scope: frozenset[str]) -> None:
        self._refuse_kind(table.get("type"))
        self._walk(table, scope)

    def _refuse_kind(self, kind: object) -> None:
        if kind not in _FROM_KINDS:
            raise QueryForbidden(f"FROM {str(kind).lower()} is not taken: GET /v1/schema lists the views")

    def _from_fields(self, table: dict[str, Any], scope: frozenset[str]) -> None:
        kind = table["type"]
        if kind == "BASE_TABLE" or ("table_name" in table and kind not in _FROM_KINDS):
            self._base_table(table, scope)
        elif kind == "TABLE_FUNCTION":
            name = (table.get("function") or {}).get("function_name", "").lower()
            if name not in _TABLE_FUNCTIONS:
                raise QueryForbidden(f"FROM {name}(...) is not taken; of functions only {sorted(_TABLE_FUNCTIONS)} are")

    def _base_table(self, table: dict[str, Any], scope: frozenset[str]) -> None:
        name = str(table.get("table_name", "")).lower()
        place = (str(table.get("catalog_name") or "").lower(), str(table.get("schema_name") or "").lower())
        path = (table.get("qualified_name") or {}).get("path")  # duckdb 2
        if path is not None and [part.lower() for part in path] != [part for part in (*place, name) if part]:
            raise QueryForbidden(f"the name {'.'.join(path)!r} is not taken: write the view's name alone")
        if table.get("type") != "BASE_TABLE":
            raise QueryForbidden(f"FROM {str(table.get('type')).lower()} is not taken: GET /v1/schema lists the views")
        if table.get("at_clause"):
            raise QueryForbidden("AT (a table as of another time) is not taken")
        if place == ("", "") and (name in scope or name in self._tables):
            return
        if place == ("", "main") and name in self._tables:
            return
        shown = ".".join(part for part in (*place, name) if part)
        raise QueryForbidden(f"no view {shown!r} to read from: there are {sorted(self._tables)}")

    def _function(self, call: dict[str, Any]) -> None:
        name = str(call.get("function_name", "")).lower()
        if call.get("catalog") or call.get("schema") not in (None, "", "main"):
            raise QueryForbidden(f"the function {name} is written with a schema: leave that out")
        if name not in self._functions and name not in _TABLE_FUNCTIONS:
            raise QueryForbidden(f"the function {name} is not taken: it does not exist, or does more than compute")
        if name != "unnest":
            check_arguments(name, arguments_of(call), self._functions)


def _body_of(cte: dict[str, Any]) -> dict[str, Any]:
    """The query of a common table expression, as duckdb 1 and as duckdb 2 write it."""
    body: dict[str, Any] = cte["query_node"] if "query_node" in cte else cte["query"]["node"]
    return body


def _depth(sql: str) -> int:
    """The deepest nesting of brackets, in strings and comments too: a bound, cheaply had."""
    depth = deepest = 0
    for character in sql:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest


def _levels(document: Any) -> int:
    """How deep lists and objects lie in one another."""
    levels, layer = 0, [document]
    while layer:
        levels += 1
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    return levels
