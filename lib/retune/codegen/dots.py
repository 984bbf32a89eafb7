"""Four-element dot products: loops of kind `dot4` become calls, which renderers know."""

from collections.abc import Mapping
from dataclasses import replace

from retune.codegen.kernel import Function
from retune.core.errors import CodegenError
from retune.ir.dot import WIDTH, dot_operands, dot_problem, word_index
from retune.ir.expr import Buffer, Call, Expr, Load, Var, const
from retune.ir.flat import elements
from retune.ir.reduction import path_to
from retune.ir.stmt import Block, For, Stmt, blocks, rewrite

FUNCTION = "dot4"
"""Name of the call that stands for the sum of four products of bytes."""


def dots_to_calls(nest: Stmt) -> Stmt:
    """The nest with `dot4(words, words)` for each `dot4` loop.

    Raises: CodegenError where a primitive after `tensorize` left nothing to do it with.
    """

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, For) or node.kind != "dot4":
            return None
        if problem := dot_problem(nest, node):
            names = ", ".join(block.name for block in blocks(node))
            raise CodegenError(f"{names}: no dot product over {node.var} any more: {problem}")
        assert isinstance(node.body, Block)
        return replace(node.body, value=_call(node.body, node.var))

    return rewrite(nest, rule)


def _call(block: Block, var: Var) -> Expr:
    operands = dot_operands(block, var)
    assert operands is not None
    words: list[Expr] = []
    for load in (operands.a, operands.b):
        index = word_index(load, var)
        assert index is not None
        size = elements(load.buffer)
        buffer = Buffer(
            load.buffer.name, (const(-(-size // WIDTH)),), f"{load.dtype}x4", load.buffer.scope
        )
        words.append(Load(buffer, (index,)))
    return Call(FUNCTION, tuple(words), "int32")


def used_functions(nest: Stmt, lanes: Mapping[Var, int]) -> list[Function]:
    """The functions that a nest calls; `lanes` are its loops run as vector lanes."""
    found: set[tuple[str, int]] = set()
    for block in blocks(nest):
        if isinstance(block.value, Call) and block.value.function == FUNCTION:
            width = [lanes[p.var] for p in path_to(nest, block) or [] if p.var in lanes]
            found.add((block.value.args[0].dtype, width[0] if width else 1))
    return [Function(FUNCTION, dtype, width) for dtype, width in sorted(found)]
