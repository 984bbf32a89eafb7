"""Loops that an intrinsic does become calls of a function over words, whose text is its way's.

Those of tiles become operations on matrix registers, see `tiles`, and those of warps calls over
what each item has read, see `warps`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from retune.codegen.kernel import Function, Value
from retune.codegen.tiles import read_as, tile_to_call
from retune.codegen.warps import warp_to_call
from retune.core.dtypes import packed
from retune.core.errors import CodegenError
from retune.intrinsics import Intrinsic, Match, Shape, intrinsic, intrinsics, match, mismatch
from retune.ir.expr import Call, Expr, Var
from retune.ir.stmt import For, Stmt, blocks, paths, rewrite


def intrinsics_to_calls(nest: Stmt) -> Stmt:
    """The nest with a call over words, or tiles, for all loops that an intrinsic does.

    Raises: CodegenError where a primitive after `tensorize` left nothing to do it with.
    """
    spread: list[tuple[For, Match]] = []

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
            spread.append((node, found))
            return None
        return replace(found.block, value=_call(found))

    nest = rewrite(nest, rule)
    for loop, found in spread:
        nest = (tile_to_call if found.entry.of_tiles else warp_to_call)(nest, loop, found)
    return nest


def _call(found: Match) -> Expr:
    words: list[Expr] = []
    for number, (load, operand) in enumerate(zip(found.reads, found.entry.operands, strict=True)):
        index = found.word(number)
        assert index is not None
        words.append(read_as(load, packed(load.dtype, operand.word), index, operand.word))
    return Call(found.entry.name, tuple(words), found.block.buffer.dtype)


def called(value: Expr) -> Intrinsic | None:
    """The intrinsic that a value is a call of; None for others."""
    if not isinstance(value, Call):
        return None
    return next((entry for entry in intrinsics() if entry.name == value.function), None)


def used_functions(nest: Stmt, lanes: Mapping[Var, int], offered: Sequence[str]) -> list[Function]:
    """The functions that a nest calls, in the best ways of those that the device offers.

    `lanes` are its loops run as vector lanes.
    """
    found: set[tuple[str, Shape]] = set()
    for block, path in paths(nest):
        if entry := called(block.value):
            width = [lanes[p.var] for p in path if p.var in lanes and not entry.op.axes]
            found.add((entry.name, shape_of(block.value.children, width[0] if width else 1)))
    return [
        Function(name, shape, intrinsic(name).way(shape, offered).name)
        for name, shape in sorted(found)
    ]


def shape_of(words: Sequence[Expr | Value], lanes: int = 1) -> Shape:
    """The shape of the function over these words, of which the first two tell the types."""
    return Shape(tuple(word.dtype.element for word in words[:2]), lanes)
