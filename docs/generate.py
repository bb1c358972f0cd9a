"""Writes what is made from tables; ``--check`` only compares.

``docs/{signals,interventions,metric-names,sql,metrics}.md``, and ``wire/interventions.json``, the catalogue for those
who have no torch.
"""

import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def signals_page() -> str:
    """Every signal, from the vocabulary."""
    from entrostat.wire.signals import FAMILIES, FINDINGS, HISTOGRAMS, USER_PREFIX

    lines = [
        "# Signals",
        "",
        "Made from `wire/declared/` by `make docs`. Natural logarithms: entropy is in nats. A signal whose inputs are",
        "absent in a run is absent, never 0. `mean`, `sum`, ... say how parts from ranks and micro-batches add up",
        "(`wire/mergeable.py`); an `estimate` comes with its standard error (`se` in `step_metric`).",
        "",
    ]
    for family, signals in FAMILIES.items():
        lines += ["", f"## {family}", "", "| signal | unit | meaning | adds up as | needs | better | source |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [
            f"| `{s.name}` | {s.unit} | {s.meaning} | {s.merge} | {', '.join(s.needs) or '-'} | {s.better} "
            f"| {s.source} |"
            for s in signals
        ]
    lines += ["", f"What the trainer logs itself arrives as `{USER_PREFIX}<its name>`."]
    for title, declared in (("Histograms", HISTOGRAMS.values()), ("Statements about a run", FINDINGS)):
        lines += ["", f"## {title}", "", "| name | unit | meaning | source |", "|---|---|---|---|"]
        lines += [f"| `{s.name}` | {s.unit} | {s.meaning} | {s.source} |" for s in declared]
    return "\n".join(lines) + "\n"


def catalogue() -> str:
    """Every intervention as JSON, from the methods themselves."""
    from pydantic import TypeAdapter

    from entrostat.interventions.methods import CATALOGUE
    from entrostat.wire.interventions import Intervention, params_of

    declared = [
        Intervention(
            name=m.name,
            acts_on=m.phase.value,
            meaning=m.meaning,
            source=m.source,
            needs=m.make(m.params()).needs if m.make else (),
            excludes=m.excludes,
            params=params_of(m.params.model_json_schema()),
        )
        for m in CATALOGUE
    ]
    return TypeAdapter(list[Intervention]).dump_json(declared, indent=1, exclude_defaults=True).decode() + "\n"


def interventions_page() -> str:
    """Every intervention, from the catalogue."""
    from pydantic import TypeAdapter

    from entrostat.wire.interventions import Intervention

    lines = [
        "# Interventions",
        "",
        "Made from `interventions/` by `make docs`. They act in the order of the policy loss: reward, advantage,",
        "ratio, clipping, token mask, penalty; `sampling` and `trainer` act outside it. A parameter that is not given",
        "takes the paper's value. `entrostat.attach(trainer, mode=..., allow=[...])` says what a run lets happen.",
    ]
    for i in TypeAdapter(list[Intervention]).validate_json(catalogue()):
        lines += ["", f"## `{i.name}`", "", i.meaning, "", f"Acts on: {i.acts_on}. Source: {i.source}."]
        if i.needs:
            lines.append(f"Needs: {', '.join(i.needs)}.")
        lines += [f"Not with `{other}`: {reason}." for other, reason in i.excludes.items()]
        if i.params:
            lines += ["", "| parameter | default | allowed | meaning |", "|---|---|---|---|"]
            lines += [f"| `{p.name}` | {_value(p.default)} | {p.allowed} | {_cell(p.meaning)} |" for p in i.params]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _value(default: object) -> str:
    return "-" if default is None else str(default)


def metric_names_page() -> str:
    """What each trainer's own metrics are in our vocabulary."""
    from entrostat.wire.metric_names import DIALECTS, GENERIC

    lines = [
        "# Names of metrics",
        "",
        "Made from `wire/metric_maps/` by `make docs`. What a trainer logs itself is kept as `trainer/<its name>`,",
        "never in the place of what the probe measured. This is what each name is among [our signals](signals.md):",
        "the same quantity (with the condition, if there is one), another one that only looks like it, or the",
        "trainer's own business. A run says it of its own keys in its event `metric_names`, unknown keys included;",
        "`entrostat.wire.metric_names.mapped` says it of any dictionary, nested or with a tracker's prefix",
        "(`train/`).",
        "`*` is a part that changes.",
    ]
    for dialect in DIALECTS.values():
        if dialect is not GENERIC:
            lines += ["", f"## {dialect.release}", "", "| its key | signal | the same? |", "|---|---|---|"]
            named = [e for e in dialect.entries if e.signal is not None]
            lines += [f"| `{e.key}` | `{e.signal}` | {e.verdict} |" for e in named]
            own = ", ".join(f"`{e.key}`" for e in dialect.entries if e.signal is None)
            lines += ["", f"Its own, nothing of ours is like them: {own}."]
    return "\n".join(lines) + "\n"


def _what_may_be_asked() -> list[str]:
    from entrostat.storage import sql_functions, sql_guard

    most, few = sql_functions.MAX_WILDCARDS, sql_functions.MAX_BACKTRACKING
    instead = {
        f"`range(...)` as a list of more than {sql_functions.MAX_LIST:,} elements, or of a column": "`FROM range(...)`",
        "a lambda in a lambda, `list_...` functions inside one": "`unnest` and `group by`",
        f"`LIKE` with more than {most} `%` ({few} for `ILIKE` and beside `_`), or computed; `GLOB`": "`regexp_matches`",
        f"quantiles that are computed, or more than {sql_functions.MAX_QUANTILES} of them": "numbers, written out",
        f"n over {sql_functions.MAX_COUNT:,} in `max(x, n)`, `approx_top_k(x, n)` and the like": "`order by`, `limit`",
        "`json_structure`, `json_merge_patch`, `json_contains`, `json_pretty`, type `VARIANT`": "`json_extract`",
        f"more than {sql_guard.MAX_CHARS:,} characters, or nested more than {sql_guard.MAX_DEPTH} deep": "`WITH`",
        "`repeat`, `lpad`, `printf`, `format`, edit distances": "your own program",
    }
    return [
        "## What may be asked",
        "",
        "Everything of a `SELECT`: `WITH` (recursive too), joins, `PIVOT` with its values given, windows, `QUALIFY`,",
        "lambdas, `COLUMNS(...)`; in `FROM` the views below and `range`, `generate_series`, `unnest`. Functions that",
        "only compute are there; those that look at files, settings or other tables are not, nor is `random`.",
        "A refusal says what was found. These are refused because one call of them can run for minutes, take all",
        "memory or end the engine, which cannot be interrupted inside a call:",
        "",
        "| not this | but this |",
        "|---|---|",
        *(f"| {this} | {that} |" for this, that in instead.items()),
    ]


def _limits_of_an_answer() -> list[str]:
    from entrostat.server.settings import Settings

    limits = Settings()
    return [
        "## Limits of an answer",
        "",
        f"A query is stopped after {limits.query_timeout_s:g} s (`query_timeout_s`), or when it takes more memory than",
        f"the engine may (`memory_limit_mb`). {limits.max_queries} run at once (`max_queries`).",
        "",
        f"A result is cut at `max_rows` of the question, at {limits.max_rows:,} rows (the server's `max_rows`), or at",
        f"{limits.max_result_mb} MiB (`max_result_mb`; a value counts 8 bytes at least), and says so: `truncated` in",
        "JSON, `X-Truncated` with Arrow, a line of `entrostat sql`, a note on the page. Where the first row alone is",
        "larger, the answer is an error that names the column. [deploy.md](deploy.md) says where limits are set, and",
        "what happens to a query that cannot be stopped.",
    ]


def sql_page() -> str:
    """Every view and column, from the comments in a new database."""
    from entrostat.storage.store import Store

    lines = [
        "# SQL",
        "",
        "Made from the database's own comments by `make docs`. One `SELECT`, DuckDB's dialect, over these views:",
        "`entrostat sql`, `POST /v1/sql`, or the dashboard's SQL page.",
        "",
        *_what_may_be_asked(),
        "",
        *_limits_of_an_answer(),
        "",
    ]
    with tempfile.TemporaryDirectory() as folder, Store(f"duckdb://{folder}/docs.duckdb") as store:
        for view in store.schema():
            lines += [f"## `{view['name']}`", "", view["comment"], "", "| column | type | meaning |", "|---|---|---|"]
            lines += [f"| `{c['name']}` | {c['type']} | {c['comment']} |" for c in view["columns"]]
            lines.append("")
    return "\n".join(lines)


def metrics_page() -> str:
    """Every metric, from a registry of the server's own, and every alert."""
    import yaml

    from entrostat.server.metrics import Metrics
    from entrostat.server.readiness import Readiness
    from entrostat.storage.store import Store

    lines = [
        "# Metrics and alerts",
        "",
        "Made from `server/metrics.py`, `server/run_metrics.py` and `deploy/prometheus/alerts.yml` by `make docs`.",
        "`GET /metrics` (scope `read`) is a view for alerts; the record is the database. At most 20 runs have series:",
        "those that have not ended and sent something within six hours. Beside these there are Prometheus's own",
        "`process_*` (memory: `process_resident_memory_bytes`).",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder, Store(f"duckdb://{folder}/docs.duckdb") as store:
        registry = Metrics(store, Readiness(store).hindrance, 2, "").registry
        families = [family for family in registry.collect() if family.name.startswith("entrostat_")]
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {key for sample in family.samples for key in sample.labels} - {"le"}
        labels |= set(getattr(family, "_labelnames", ()))
        shown = ", ".join(f"`{label}`" for label in sorted(labels))
        lines.append(f"| `{name}` | {family.type} | {shown} | {_cell(family.documentation)} |")
    lines += ["", "## Alerts", "", "| alert | severity | for | says | see |", "|---|---|---|---|---|"]
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            says, page = rule["annotations"]["summary"], rule["annotations"]["runbook_url"].removeprefix("docs/")
            row = (
                f"`{rule['alert']}`",
                rule["labels"]["severity"],
                rule.get("for", "-"),
                _said(says),
                f"[{page}]({page})",
            )
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _said(summary: str) -> str:
    """A summary with its templates as three dots."""
    return re.sub(r"\{\{.*?\}\}", "...", summary)


def main() -> int:
    """Write the files; with ``--check`` return 1 where one differs."""
    stale = []
    makers = {
        "wire/interventions.json": catalogue,  # first: the page is made from it
        "docs/signals.md": signals_page,
        "docs/interventions.md": interventions_page,
        "docs/metric-names.md": metric_names_page,
        "docs/sql.md": sql_page,
        "docs/metrics.md": metrics_page,
    }
    for name, make in makers.items():
        path, text = ROOT / name, make()
        if "--check" in sys.argv:
            if not path.exists() or path.read_text() != text:
                stale.append(name)
        else:
            path.write_text(text)
    if stale:
        print(f"out of date: {', '.join(stale)}; run make docs")  # noqa: T201  a script's answer
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
