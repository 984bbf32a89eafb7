"""A program whose inputs and outputs lie in another way, such as in columns of wider buffers."""

from collections.abc import Mapping
from dataclasses import replace

from retune.core.dtypes import INT32
from retune.core.keys import content_key, short_key
from retune.ir.expr import Buffer, Load, binary, const
from retune.ir.stmt import Element, Indices, Program, map_accesses, with_body
from retune.ir.storage import Storage

_MOST_LETTERS = 100
"""Of a name, for how its program's buffers lie: PoCL names files after kernels, and file systems
take 255 letters."""


def view(program: Program, storages: Mapping[str, Storage]) -> Program:
    """The program whose inputs and outputs of these names lie as the storages say.

    The rest of what it writes into is left alone. Buffers keep names, shapes and indices; the
    program's own name says how they lie, as its kernels are others.
    """
    placed = {
        b: replace(b, storage=storages[b.name])
        for b in (*program.inputs, *program.outputs)
        if b.name in storages
    }
    if not placed:
        return program

    def moved(buffer: Buffer, indices: Indices) -> Element | None:
        return (placed[buffer], indices) if buffer in placed else None

    marks = [
        f"{side}{number}_{storages[b.name]}"
        for side, buffers in (("in", program.inputs), ("out", program.outputs))
        for number, b in enumerate(buffers)
        if b in placed
    ]
    return replace(
        with_body(program, map_accesses(program.body, moved)),
        name=f"{program.name}_{_short('_'.join(marks))}",
        inputs=tuple(placed.get(b, b) for b in program.inputs),
        outputs=tuple(placed.get(b, b) for b in program.outputs),
    )


def _short(marks: str) -> str:
    """The marks, or a key of theirs where they are many, or name extents by more than letters and
    digits: a kernel's name has no others, and `n + 5` and `n - 5` would be one."""
    short = len(marks) <= _MOST_LETTERS and marks.replace("_", "").isalnum()
    return marks if short else f"views_{short_key(content_key(marks))}"


def stacked(program: Program, name: str, count: int, number: str) -> Program:
    """The program whose output of that name is one of `count` values side by side along a new first
    axis, the others of which it leaves alone.

    Which one, an int32 in a new input called `number` says; the first or last one for a number
    before or behind them, as a counter is after its loop. The program's own name says how many
    there are, as its kernels are others.
    """
    ((position, old),) = ((n, b) for n, b in enumerate(program.outputs) if b.name == name)
    new = replace(old, shape=(const(count), *old.shape))
    which = Buffer(number, (), INT32)
    index = binary("min", binary("max", Load(which, ()), const(0)), const(count - 1))

    def moved(buffer: Buffer, indices: Indices) -> Element | None:
        return (new, (index, *indices)) if buffer == old else None

    return replace(
        with_body(program, map_accesses(program.body, moved)),
        name=f"{program.name}_{_short(f'out{position}_rows{count}')}",
        inputs=(*program.inputs, which),
        outputs=tuple(new if b == old else b for b in program.outputs),
    )
