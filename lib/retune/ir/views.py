"""A program whose inputs and outputs lie in another way, such as in columns of wider buffers."""

from collections.abc import Mapping
from dataclasses import replace

from retune.core.dtypes import INT32
from retune.core.keys import content_key, short_key
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Buffer, Load, as_expr, binary, const
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


def stacked(program: Program, name: str, count: int, number: str, images: int = 0) -> Program:
    """The program whose output of that name is one of `count` values side by side along a new first
    axis, the others of which it leaves alone.

    Which one, an int32 in a new input called `number` says; the first or last one for a number
    before or behind them, as a counter is after its loop. With `images`, an input or output is so
    many of `count` along its own first axis, which may be walked as one with those behind it, and
    the number is that of its first one. The program's own name says how many there are, as its
    kernels are others.
    """
    sides = (("in", program.inputs), ("out", program.outputs))
    ((side, position, old),) = (
        (side, n, b) for side, buffers in sides for n, b in enumerate(buffers) if b.name == name
    )
    which = Buffer(number, (), INT32)
    last = as_expr(count - max(1, images), INT32)
    index = binary("min", binary("max", Load(which, ()), const(0)), last)
    if images:
        own = evaluate_int(old.shape[0]) // images
        new = replace(old, shape=(as_expr(count * own, INT32), *old.shape[1:]))
    else:
        own, new = 1, replace(old, shape=(as_expr(count, INT32), *old.shape))

    def moved(buffer: Buffer, indices: Indices) -> Element | None:
        if buffer != old:
            return None
        if not images:
            return new, (index, *indices)
        first, *others = indices
        return new, (index * own + first, *others)

    kind = f"{images}of" if images else "rows"
    mark = _short(f"{side}{position}_{kind}{count}")
    return replace(
        with_body(program, map_accesses(program.body, moved)),
        name=f"{program.name}_{mark}",
        inputs=tuple(dict.fromkeys((*(new if b == old else b for b in program.inputs), which))),
        outputs=tuple(new if b == old else b for b in program.outputs),
    )
