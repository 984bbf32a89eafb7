"""Reconnecting a board to its scheduler: less and less often while it is refused.

distributed's worker tries again ten times a second, whatever it was told. Read
`connect_in_one_try` and `Pauses`.
"""

from typing import Any

import distributed.worker
from distributed.comm.core import CommClosedError, connect

from retune.core.errors import DeviceError

_LEAST_S, _MOST_S = 2.0, 60.0
"""Between two tries."""


class NotLetInError(DeviceError):
    """The scheduler is away, or closed the connection."""

    def __init__(self, message: str, *, closed: bool) -> None:
        super().__init__(message)
        self.closed = closed
        """Somebody is there, and wants nothing of this board."""


class Pauses:
    """How long a board waits before it tries again."""

    def __init__(self) -> None:
        self._refusals = 0

    def next_s(self, *, closed: bool) -> float:
        """Twice as long after each refusal, up to a minute.

        One who is away may be back at any moment, and counts anew.
        """
        self._refusals = self._refusals + 1 if closed else 0
        return min(_MOST_S, _LEAST_S * 2.0 ** min(self._refusals, 16))


def connect_in_one_try() -> None:
    """From now on the workers of this process end where their scheduler does not let them in.

    They raise NotLetInError then.
    """
    distributed.worker.connect = connect_once  # pyrefly: ignore[bad-assignment]  as it is called


async def connect_once(address: str, **options: Any) -> Any:
    """distributed's `connect`, whose first message of the other side is awaited as a part of it.

    Raises: NotLetInError where distributed would try again.
    """
    try:
        comm: Any = await connect(address, **options)
    except OSError as error:
        raise _not_let_in(error) from error
    read = comm.read

    async def first(*args: Any, **kwargs: Any) -> Any:
        comm.read = read
        try:
            return await read(*args, **kwargs)
        except OSError as error:
            raise _not_let_in(error) from error

    comm.read = first
    return comm


def _not_let_in(error: OSError) -> NotLetInError:
    if isinstance(error, CommClosedError):
        return NotLetInError(
            "the scheduler closes the connection; is this the certificate of a board of its own "
            "authority, and not revoked? Its log says why",
            closed=True,
        )
    return NotLetInError(
        "no scheduler answers; check address and certificates, or start it", closed=False
    )
