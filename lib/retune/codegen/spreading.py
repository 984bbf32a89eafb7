"""Copies that run ahead, spread between the instructions of a warp that multiply meanwhile.

What an item reads from local memory waits behind the copies that it started before: all of a step's
copies at once hold its products up, one after every few of them does not (H100, products of float16
of 4096 and 8192 in tiles of 128 x 256: 0.88 of the time).
"""

from collections.abc import Iterable, Iterator, Sequence
from types import UnionType

from retune.codegen.kernel import Commit, CopyAhead, ForLoop, If, Statement, Together, Wait

_HALF = 2
"""Copies come between the first half of the products, so that they arrive early enough."""


def spread_copies(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The body of a loop with its copies between its products, where both are written out.

    Rewrite, for iterations that start with a wait:
        wait                            wait
        copy; copy; commit              product; copy
        product; product; product  ->   product; copy; commit
        product                         product; product
    """
    last = max((n for n, s in enumerate(body) if isinstance(s, Commit)), default=0)
    copying, products = body[1 : last + 1], body[last + 1 :]
    groups = list(_pieces(products, Together))
    written_out = len(groups) >= _HALF and not any(isinstance(s, ForLoop) for s in copying)
    if not last or not isinstance(body[0], Wait) or not written_out:
        return tuple(body)
    commits = [s for s in copying if isinstance(s, Commit)]
    parts = list(_pieces((s for s in copying if not isinstance(s, Commit)), CopyAhead | If))
    positions = [n * len(groups) // (_HALF * len(parts)) for n in range(len(parts))]
    made = [body[0]]
    for number, group in enumerate(groups):
        made += group
        for position, part in zip(positions, parts, strict=True):
            made += part if position == number else []
        made += commits if number == positions[-1] else []
    return tuple(made)


def _pieces(statements: Iterable[Statement], ends: type | UnionType) -> Iterator[list[Statement]]:
    """The statements, parted behind each one of these kinds."""
    piece: list[Statement] = []
    for statement in statements:
        piece.append(statement)
        if isinstance(statement, ends):
            yield piece
            piece = []
    if piece:
        yield piece
