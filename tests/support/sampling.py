"""Which of many combinations the gate runs; the slow tests run the others."""

import os
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import pytest
from _pytest.mark import ParameterSet


def one_of_each(names: Iterable[Any], others: Sequence[Any]) -> list[ParameterSet]:
    """All pairs as parameters; for each name one pair is in the gate, and the others are slow.

    The choice is the same in every process; another RETUNE_SEED chooses others.
    """
    seed = os.environ.get("RETUNE_SEED", "")

    def marks(name: Any, other: Any) -> tuple[pytest.MarkDecorator, ...]:
        chosen = others[crc32(f"{seed} {name}".encode()) % len(others)]
        return () if other == chosen else (pytest.mark.slow,)

    return [pytest.param(n, o, marks=marks(n, o)) for n in names for o in others]
