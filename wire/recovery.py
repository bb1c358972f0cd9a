"""What a dead process left in its stream's directory becomes batches: rows in tails, steps that nobody reduced.

Whoever is stopped in between leaves it so that the next one makes the same batches: nothing is removed before the batch
that has it is written, and a step says which batch that will be before it is.
"""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from entrostat.wire import stream_files, tail
from entrostat.wire.codec import Tables, encode
from entrostat.wire.handover import SUFFIX, Left, left_in
from entrostat.wire.stream_files import BATCH, NEXT, REJECTED, TAIL, numbered, write_whole

Restore = Callable[[bytes, memoryview], Tables]
"""Document and data of a step that was handed over (``wire/handover.py``) -> its rows."""


class Recovery:
    """Of one stream that no live process holds.

    Args:
        path: its directory; the caller holds its lock.
        restore: reduces what was handed over and not reduced; None where that cannot be done here.
    """

    def __init__(self, path: Path, restore: Restore | None) -> None:
        self._path, self._restore = path, restore
        self.problems: list[str] = []
        """What could not be made a batch, and stays."""

    def run(self) -> None:
        """Make the batches, under the numbers they were to have: what was sent after all, the ledger knows.

        Raises:
            OSError: the disk refuses; nothing is lost.
        """
        tails, kept = numbered(self._path, TAIL), {*numbered(self._path, BATCH)}
        kept |= {*numbered(self._path / REJECTED, BATCH)}
        next_seq = max(stream_files.counted(self._path), 1 + max([*tails, *kept], default=-1))
        found = {seq: tail.read(stream_files.tail_file(self._path, seq)) for seq in tails}
        noted = {step for _, steps in found.values() for step in steps}
        steps = [left for left in left_in(self._path) if left.number not in noted and left.seq not in kept]
        parts = {seq: [rows] if rows else [] for seq, (rows, _) in found.items() if seq not in kept}
        parts |= {left.seq: [] for left in steps if left.seq is not None and left.seq not in parts}
        waiting = self._wait(steps) if self._restore is None else set()
        stay = {left.path for left in steps} if self._restore is None else set()
        stay |= self._write({seq: rows for seq, rows in parts.items() if seq not in waiting}, steps)
        stay |= self._write_each([left for left in steps if left.seq is None and left.path not in stay], next_seq)
        for path in self._path.glob(f"*{SUFFIX}"):  # never handed over, or rows by now, or torn when the host ended
            if path not in stay:
                path.unlink(missing_ok=True)
        for seq in tails.keys() - waiting:  # after the steps that became part of them
            stream_files.tail_file(self._path, seq).unlink(missing_ok=True)

    def _wait(self, steps: list[Left]) -> set[int]:
        """Without ``restore``: the batches that wait for whoever has it, because a step belongs to them."""
        if steps:
            self.problems.append(
                f"{self._path}: {len(steps)} steps were handed over and never reduced, which takes torch: push from an "
                "environment that has it"
            )
        return {left.seq for left in steps if left.seq is not None}

    def _write(self, batches: dict[int, list[Tables]], steps: list[Left]) -> set[Path]:
        """The batches whose numbers are known; returns the files of steps that stay."""
        stay = set()
        for seq, parts in sorted(batches.items()):
            for left in steps:
                if left.seq == seq and (rows := self._rows(left)):
                    parts.append(rows)
                elif left.seq == seq:
                    left.becomes(None)
                    stay.add(left.path)
            if parts:
                write_whole(stream_files.batch_file(self._path, seq), encode(_joined(parts)))
        return stay

    def _write_each(self, steps: list[Left], next_seq: int) -> set[Path]:
        """A batch of its own, from ``next_seq`` on, for each step; returns the files of those that stay."""
        self._set_count(next_seq)
        stay = set()
        for left in steps:
            if not (rows := self._rows(left)):
                stay.add(left.path)
                continue
            left.becomes(next_seq)
            self._set_count(next_seq + 1)
            write_whole(stream_files.batch_file(self._path, next_seq), encode(rows))
            left.path.unlink()
            next_seq += 1
        return stay

    def _rows(self, left: Left) -> Tables | None:
        assert self._restore is not None
        try:
            return self._restore(*left.read())
        except Exception as error:  # noqa: BLE001 - whatever it is, the other steps are not to be held up by it
            self.problems.append(f"{left.path} cannot be reduced: {type(error).__name__}: {error}")
            return None

    def _set_count(self, next_seq: int) -> None:
        (self._path / NEXT).touch()
        with open(self._path / NEXT, "r+b", buffering=0) as file:
            stream_files.set_count(file.fileno(), next_seq)


def _joined(parts: list[Tables]) -> Tables:
    names = {name: None for part in parts for name in part}  # in their order
    return {name: pa.concat_tables([part[name] for part in parts if name in part]) for name in names}
