"""The tables of a batch: columns, types, meanings. Storage makes its own tables and comments from them."""

import pyarrow as pa

from entrostat.wire.bins import MAX_BIN
from entrostat.wire.declared.entropy import NUM_POSITIONS

PROTOCOL = 2
"""Version of everything that crosses the wire. A newer batch is refused by an older server, with both versions; an
older batch is read, and the nullable columns that came after it are null."""

MAX_STEP = 2**31 - 1
END_OF_TIME_US = 253_402_300_799_999_999
"""The last microsecond of the year 9999, since 1970: Python reads nothing later."""


def _column(name: str, kind: pa.DataType, meaning: str, nullable: bool = False, since: int = 1) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"meaning": meaning, "since": str(since)})


_STEP = _column("step", pa.int32(), "Optimizer step the row belongs to, as the trainer counts.")

STEP_METRIC = pa.schema(
    [
        _STEP,
        _column("name", pa.string(), "Signal, as in wire/signals.py, or the user's own name."),
        _column("merge", pa.string(), "How parts add up: a rule of wire/mergeable.py."),
        _column("state", pa.list_(pa.float64()), "The rule's numbers for this producer's share."),
    ]
)
HISTOGRAM = pa.schema(
    [
        _STEP,
        _column("name", pa.string(), "Which histogram: a key of HISTOGRAMS."),
        _column("bin", pa.int16(), "Bin, as in wire/bins.py."),
        _column("count", pa.int64(), "Tokens in the bin."),
        _column("total", pa.float64(), "Sum of their values."),
    ]
)
PROFILE = pa.schema(
    [
        _STEP,
        _column("name", pa.string(), "Which curve: a name of PROFILES."),
        _column("bin", pa.int16(), "Bin of relative position in the response, from 0."),
        _column("count", pa.int64(), "Tokens in the bin."),
        _column("total", pa.float64(), "Sum of their values."),
    ]
)
CELL = pa.schema(
    [
        _STEP,
        _column("cell", pa.int32(), "Number of the cell within the step and rank; see wire/cells.py."),
        _column("count", pa.int64(), "Tokens in the cell."),
        _column("sum_logp", pa.float64(), "Sum of their log-probs, in nats."),
        _column("sum_advantage", pa.float64(), "Sum of their advantages."),
        _column("sum_product", pa.float64(), "Sum of log-prob x advantage."),
    ]
)
SEQUENCE = pa.schema(
    [
        _STEP,
        _column("seq", pa.int32(), "Response, counted from 0 within the step and rank."),
        _column(
            "prompt", pa.int64(), "The prompt's group: responses with the same number answer the same prompt.", True
        ),
        _column("length", pa.int32(), "Response tokens."),
        _column("truncated", pa.bool_(), "Cut at the length limit, without an end token.", True),
        _column("reward", pa.float32(), "Total reward.", True),
        _column("advantage", pa.float32(), "The trainer's advantage before any shaping.", True),
        _column("mean_logp", pa.float32(), "Mean log-prob of the response's tokens, in nats."),
        _column("mean_entropy", pa.float32(), "Mean entropy over the response's tokens, in nats."),
        _column("ppl", pa.float32(), "exp(-mean_logp)."),
        _column("completion", pa.int64(), "Hash of its token ids: the same number for the same response.", True),
        _column("answer", pa.int64(), "Hash of the answer found in its text.", True),
        _column("format_violation", pa.bool_(), "Not exactly one answer in its text.", True),
        _column("language_mixing", pa.bool_(), "A CJK character where the prompt has none.", True),
        _column("repetition", pa.bool_(), "A run of words comes again and again.", True),
    ]
)
TOKEN = pa.schema(
    [
        _STEP,
        _column("seq", pa.int32(), "Response, as in the sequence table."),
        _column("pos", pa.int32(), "Position in the response, from 0."),
        _column("token_id", pa.int32(), "The sampled token."),
        _column("logp", pa.float32(), "Its log-prob, in nats."),
        _column("entropy", pa.float32(), "Entropy of the distribution it was drawn from, in nats."),
        _column("advantage", pa.float32(), "The advantage it was trained with.", True),
        _column("cov", pa.float32(), "Its covariance share (logp - mean logp)(A - mean A).", True),
        _column("ratio", pa.float32(), "Probability ratio to the old policy.", True),
        _column(
            "rank", pa.int8(), "Its rank among the candidates, 1 = most likely; one more than are kept: beyond.", True
        ),
        _column("sum_p2", pa.float32(), "Sum of squared probabilities.", True),
        _column("support95", pa.int8(), "Candidates needed for 0.95 of the mass; one more than are kept: more.", True),
        _column("self_certainty", pa.float32(), "KL(uniform || p), in nats.", True),
        _column("logsumexp", pa.float32(), "Of the tempered logits.", True),
        _column("top_ids", pa.list_(pa.int32()), "The most likely candidates, most likely first.", True),
        _column("top_logps", pa.list_(pa.float32()), "Their log-probs, in nats.", True),
        _column("category", pa.string(), "Kind of token: formal, logical, metacognitive or semantic.", True),
        _column("text", pa.string(), "Its text, where the run keeps texts (off by default).", True),
        _column("reason", pa.string(), "Why the row was kept: all, uniform, scope, cov or entropy."),
        _column("prob", pa.float32(), "Probability with which it was kept: weight a row by 1 / prob."),
        _column(
            "rollout_logp",
            pa.float32(),
            "Its log-prob under the engine that sampled it, in nats; null where that reported none.",
            True,
            since=2,
        ),
    ]
)
EVENT = pa.schema(
    [
        _column("step", pa.int32(), "Step it belongs to, where there is one.", True),
        _column("time", pa.timestamp("us"), "When, UTC."),
        _column("kind", pa.string(), "For example run_started, resumed, warning, dropped, note."),
        _column("message", pa.string(), "One sentence for a person."),
        _column("detail", pa.string(), "JSON object with the values behind it.", True),
    ]
)

TABLES = {
    "step_metric": STEP_METRIC,
    "histogram": HISTOGRAM,
    "profile": PROFILE,
    "cell": CELL,
    "sequence": SEQUENCE,
    "token": TOKEN,
    "event": EVENT,
}


MOST_COUNTED = 2**40
"""Tokens in one bin or cell of one producer's step: far beyond any, and a million of them still add up in 64 bits."""
BOUNDS: dict[str, dict[str, tuple[int, int]]] = {
    "step_metric": {"step": (0, MAX_STEP)},
    "histogram": {"step": (0, MAX_STEP), "bin": (-MAX_BIN, MAX_BIN), "count": (0, MOST_COUNTED)},
    "profile": {"step": (0, MAX_STEP), "bin": (0, NUM_POSITIONS - 1), "count": (0, MOST_COUNTED)},
    "cell": {"step": (0, MAX_STEP), "cell": (0, 2**31 - 1), "count": (0, MOST_COUNTED)},
    "sequence": {"step": (0, MAX_STEP), "seq": (0, 2**31 - 1), "length": (0, 2**31 - 1)},
    "token": {"step": (0, MAX_STEP), "seq": (0, 2**31 - 1), "pos": (0, 2**31 - 1)},
    "event": {"step": (0, MAX_STEP), "time": (0, END_OF_TIME_US)},
}
"""Lowest and highest value of columns. Beyond them a view could not add up, or nobody could read what it gives."""
NAMES = ("name", "merge", "kind", "reason", "category")
"""Columns that hold names: at most ``MAX_NAME_CHARS`` characters."""
MAX_NAME_CHARS = 1000
MAX_TEXT_CHARS = 2**20
"""Of an event's message and detail, and of a token's text."""


def meaning_of(field: pa.Field) -> str:
    """The one-sentence meaning kept beside a column."""
    return str((field.metadata or {})[b"meaning"].decode())


def since(field: pa.Field) -> int:
    """The first protocol that has the column."""
    return int((field.metadata or {})[b"since"])


def empty(name: str) -> pa.Table:
    """A table of the wire without rows."""
    return TABLES[name].empty_table()
