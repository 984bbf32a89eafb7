"""Which of many combinations the gate runs; the slow tests run the others."""

import os
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import pytest
from _pytest.mark import ParameterSet


def drawn(name: Any, count: int) -> int:
    """A number below `count`: the same in every process, others with another RETUNE_SEED."""
    return crc32(f"{os.environ.get('RETUNE_SEED', '')} {name}".encode()) % count


def one_of_each(names: Iterable[Any], others: Sequence[Any]) -> list[ParameterSet]:
    """All pairs as parameters; for each name one pair is in the gate, and the others are slow.

    The choice is that of `drawn`.
    """

    def marks(name: Any, other: Any) -> tuple[pytest.MarkDecorator, ...]:
        chosen = others[drawn(name, len(others))]
        return () if other == chosen else (pytest.mark.slow,)

    return [pytest.param(n, o, marks=marks(n, o)) for n in names for o in others]
