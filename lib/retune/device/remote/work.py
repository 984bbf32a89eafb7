"""The one function that a farm's scheduler hands to boards: bytes in, bytes out."""


def carry_out(job: bytes) -> bytes:
    """The board's answer to a job, both as `wire` packs them. To be called on a board alone."""
    from distributed import get_worker

    return get_worker().board.carry_out(job)  # pyright: ignore[reportAttributeAccessIssue]  see `retune.farm.serve`
