"""How large a result is, and its first rows that fit."""

import pyarrow as pa

VALUE_BYTES = 8
"""The least that a value counts, lists' elements included: a million columns of nulls take no Arrow memory at all, and
eight bytes each as soon as they are Python's or JSON's."""


def size_of(batch: pa.RecordBatch) -> int:
    """Bytes of ``batch``: as Arrow in memory, or ``VALUE_BYTES`` a value where that is more."""
    return max(int(batch.nbytes), VALUE_BYTES * sum(_num_values(column) for column in batch.columns))


def cut_to(batch: pa.RecordBatch, max_bytes: int) -> pa.RecordBatch:
    """The first rows of ``batch`` that together have at most ``max_bytes``."""
    if size_of(batch) <= max_bytes:
        return batch
    fits, too_many = 0, batch.num_rows
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if size_of(batch.slice(0, middle)) <= max_bytes:
            fits = middle
        else:
            too_many = middle
    return batch.slice(0, fits)


def _num_values(array: pa.Array) -> int:
    kind = array.type
    if pa.types.is_struct(kind):
        return len(array) + sum(_num_values(child) for child in array.flatten())
    if pa.types.is_map(kind):
        begin, end = _ends(array)
        return len(array) + _num_values(array.keys[begin:end]) + _num_values(array.items[begin:end])
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return len(array) + _num_values(array.flatten())
    return len(array)


def _ends(array: pa.MapArray) -> tuple[int, int]:
    """Where the entries of a slice begin and end in its parent's."""
    offsets = array.offsets
    return offsets[0].as_py() if len(offsets) else 0, offsets[-1].as_py() if len(offsets) else 0
