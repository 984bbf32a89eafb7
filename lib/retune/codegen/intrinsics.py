"""Loops that an intrinsic does become calls of a function over words, whose text is its way's.

Those of tiles become operations on matrix registers, see `tiles`, and those of warps calls over
what each item has read, see `warps`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from retune.codegen.kernel import Function, Value, element_of
from retune.codegen.tiles import tiles_to_calls
from retune.codegen.warps import is_of_warps, shape_of_warps, warp_to_call
from retune.core.errors import CodegenError
from retune.instructions import Match, Shape, intrinsic, intrinsics, match, mismatch
from retune.ir.expr import Buffer, Call, Expr, Load, Var, const
from retune.ir.flat import elements
from retune.ir.stmt import For, Stmt, blocks, paths, rewrite


def intrinsics_to_calls(nest: Stmt) -> Stmt:
    """The nest with a call over words, or tiles, for all loops that an intrinsic does.

    Raises: CodegenError where a primitive after `tensorize` left nothing to do it with.
    """

    tiled: list[tuple[For, Match]] = []
    together: list[tuple[For, Match]] = []

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, For) or not node.intrinsic:
            return None
        entry = intrinsic(node.intrinsic)
        found = match(entry, node)
        problem = found if isinstance(found, str) else mismatch(entry, nest, node)
        if isinstance(found, str) or problem:
            names = ", ".join(block.name for block in blocks(node))
            raise CodegenError(f"{names}: no {entry.name} over {node.var} any more: {problem}")
        if entry.op.axes:
            (tiled if entry.of_tiles else together).append((node, found))
            return None
        return replace(found.block, value=_call(found))

    nest = tiles_to_calls(rewrite(nest, rule), tiled)
    for loop, found in together:
        nest = warp_to_call(nest, loop, found)
    return nest


def _call(found: Match) -> Expr:
    words: list[Expr] = []
    for number, (load, operand) in enumerate(zip(found.reads, found.entry.operands, strict=True)):
        index = found.word(number)
        assert index is not None
        size = -(-elements(load.buffer) // operand.word)
        dtype = f"{load.dtype}x{operand.word}"
        buffer = Buffer(load.buffer.name, (const(size),), dtype, load.buffer.scope)
        words.append(Load(buffer, (index,)))
    return Call(found.entry.name, tuple(words), found.block.buffer.dtype)


def is_intrinsic(function: str) -> bool:
    """Whether calls of that function are an intrinsic's."""
    return any(entry.name == function for entry in intrinsics())


def used_functions(nest: Stmt, lanes: Mapping[Var, int], offered: Sequence[str]) -> list[Function]:
    """The functions that a nest calls, in the best ways of those that the device offers.

    `lanes` are its loops run as vector lanes.
    """
    found: set[tuple[str, Shape]] = set()
    for block, path in paths(nest):
        call = block.value
        if isinstance(call, Call) and is_of_warps(call.function):
            found.add((call.function, shape_of_warps(call)))
        elif isinstance(call, Call) and is_intrinsic(call.function):
            width = [lanes[p.var] for p in path if p.var in lanes]
            found.add((call.function, shape_of(call.args, width[0] if width else 1)))
    return [
        Function(name, shape, intrinsic(name).way(shape, offered).name)
        for name, shape in sorted(found)
    ]


def shape_of(words: Sequence[Expr | Value], lanes: int) -> Shape:
    """The shape of the function over these words."""
    return Shape(tuple(element_of(word.dtype) for word in words), lanes)
