"""The one function that a farm's scheduler hands to boards: bytes in, bytes out."""

from typing import Any


def carry_out(job: bytes) -> bytes:
    """The board's answer to a job, both as `wire` packs them. To be called on a board alone."""
    from distributed import get_worker

    worker: Any = get_worker()  # a BoardWorker of `retune.farm.serve`
    return worker.board.carry_out(job)
