"""A store's own state at a moment: for readiness, metrics and the log."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreState:
    """What can be said of a store without asking its database.

    Args:
        failure: why nothing can be written any more, nor will be without a new start; None while all is well.
        write_error: why the last write failed, where disk or engine are to blame; None since one worked.
        disk_problem: why the disk has no room for a batch; None while it has.
        is_queue_full: a batch was refused for want of room in the queue, and would be again.
        queue_bytes, num_waiting: memory and number of the batches that wait or are being committed.
        oldest_waiting_s: how long the oldest of them has waited.
        log_bytes: size of the write-ahead log.
        free_bytes: free on the disk; None where no disk is used.
        min_free_bytes: so much must stay free.
    """

    failure: str | None
    write_error: str | None
    disk_problem: str | None
    is_queue_full: bool
    queue_bytes: int
    max_queue_bytes: int
    num_waiting: int
    oldest_waiting_s: float
    database_bytes: int
    log_bytes: int
    free_bytes: int | None
    min_free_bytes: int
