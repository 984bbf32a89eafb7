"""Stages that are evaluated at compile time: numpy computes them, then packs the result.

A scratch buffer of scope `constant` is written by such a stage. Its nest becomes no kernel; what
reads it gets an array that was made, in numpy, from the constants behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from retune.codegen.source import Pack
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Buffer, Var, loads, variables
from retune.ir.interp import run_program
from retune.ir.selections import conditions
from retune.ir.stmt import Program, Seq, Stmt, blocks, is_compile_time

_KEPT = 4
"""Constants that stay computed: tens of megabytes each."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A constant that stages compute from others. `apply` takes those in the order of `inputs`."""

    nests: tuple[Stmt, ...]
    """The stages, producers first."""
    inputs: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    result: Buffer
    order: Pack | None = None
    """How the result is packed, where a kernel wants it in its own order."""

    def apply(self, *arrays: np.ndarray) -> np.ndarray:
        """The constant, flat, in the order in which it is read: [elements of its buffer]."""
        made = _evaluated(replace(self, order=None), tuple(map(_Given, arrays)))
        return made.reshape(-1) if self.order is None else self.order.apply(made)


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """An array that is the same as another one only if it is that one."""

    array: np.ndarray

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Given) and self.array is other.array

    def __hash__(self) -> int:
        return id(self.array)


@lru_cache(maxsize=_KEPT)
def _evaluated(constant: Computed, given: tuple[_Given, ...]) -> np.ndarray:
    """The constant in its own shape. Candidates of one task share it, whatever order they want."""
    arrays = {
        buffer.name: entry.array.reshape([evaluate_int(e) for e in buffer.shape])
        for buffer, entry in zip(constant.inputs, given, strict=True)
    }
    program = Program(
        name="constants",
        inputs=constant.inputs,
        outputs=(constant.result,),
        scratch=constant.scratch,
        body=Seq(constant.nests),
    )
    made = run_program(program, arrays, _deciding(constant.nests))[constant.result.name]
    made.setflags(write=False)
    return made


def computed_constants(program: Program) -> dict[str, Computed]:
    """What the program's compile-time stages compute, by the names of their buffers."""
    known: dict[Buffer, tuple[Stmt, ...]] = {}
    found: dict[str, Computed] = {}
    for root in program.body.stmts:
        buffer = blocks(root)[0].buffer
        if not is_compile_time(root):
            continue
        read = {load.buffer for b in blocks(root) for load in loads(b.value)}
        before = {s: None for r in known if r in read for s in known[r]}
        known[buffer] = (*before, root)
        touched = {load.buffer for s in known[buffer] for b in blocks(s) for load in loads(b.value)}
        found[buffer.name] = Computed(
            known[buffer],
            tuple(b for b in program.inputs if b in touched),
            tuple(b for b in known if b in touched and b != buffer),
            buffer,
        )
    return found


def packed(computed: Mapping[str, Computed], packs: Mapping[str, Pack]) -> dict[str, Pack]:
    """All packs: those of computed constants after their computation."""
    chained = {n: replace(c, order=packs.get(n)) for n, c in computed.items()}
    return {**packs, **chained}


def _deciding(nests: Sequence[Stmt]) -> set[Var]:
    """The variables that choose among the rows of a transform: each chosen formula is short."""
    tests = (t for nest in nests for block in blocks(nest) for t in conditions(block.value))
    return {var for test in tests for var in variables(test)}
