"""The work that every tool is given: 40 scalars a step, and 16,384 tokens x 6 float32 values."""

from pathlib import Path

import numpy as np

ROWS, COLUMNS, BLOCKS, SCALARS = 64, 256, 8, 40
NUM_TOKENS = ROWS * COLUMNS
NAMES = ("logp", "entropy", "advantages", "log_ratio", "sum_p2", "hidden_norm")
SCALAR_NAMES = [f"metric/number_{i}" for i in range(SCALARS)]

Block = dict[str, np.ndarray]


def blocks() -> list[Block]:
    """Skewed draws of tokens' values, [64, 256] float32 each; the same in every process."""
    random = np.random.default_rng(0)
    shape, made = (ROWS, COLUMNS), []
    for _ in range(BLOCKS):
        values = {
            "logp": -random.exponential(0.6, shape),
            "entropy": random.exponential(0.5, shape),
            "advantages": random.normal(size=(ROWS, 1)) + np.zeros(shape),
            "log_ratio": random.normal(0, 0.02, shape),
            "sum_p2": random.beta(4, 1, shape),
            "hidden_norm": random.gamma(20, 1, shape),
        }
        block: Block = {name: value.astype(np.float32) for name, value in values.items()}
        block["token_ids"] = random.integers(0, 150_000, shape)
        block["mask"] = np.ones(shape, np.bool_)
        made.append(block)
    return made


def scalars() -> list[dict[str, float]]:
    """40 numbers for each block; the same in every process."""
    random = np.random.default_rng(1)
    return [
        {n: float(v) for n, v in zip(SCALAR_NAMES, random.normal(size=SCALARS), strict=True)} for _ in range(BLOCKS)
    ]


def columns(block: Block) -> dict[str, np.ndarray]:
    """The six columns of 16,384 values, as a data frame or an Arrow table takes them: no copy."""
    return {name: block[name].reshape(-1) for name in NAMES}


def listed(block: Block) -> list[list[float]]:
    """16,384 rows of six Python floats, for tables that take nothing else."""
    made: list[list[float]] = np.stack([block[name].reshape(-1) for name in NAMES], 1).tolist()
    return made


def histograms(block: Block) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Counts and edges of 64 bins a column: 0.4 % of the information."""
    return {name: np.histogram(block[name], 64) for name in NAMES}


def write_parquet(block: Block, path: Path) -> Path:
    """The six columns as a Parquet file, by the settings that are fastest for random floats."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table(columns(block)), path, use_dictionary=False, compression="zstd", use_byte_stream_split=list(NAMES)
    )
    return path


def is_whole_parquet(path: Path) -> bool:
    """Whether the file can be read and has all its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return bool(pq.read_table(path).num_rows == NUM_TOKENS)
    except (OSError, pa.ArrowInvalid):
        return False
