"""Selections: reads that happen whatever they decide, and masks of positions."""

from collections.abc import Iterator

from retune.ir.expr import Expr, Load, Select, loads, walk


def certain_loads(expr: Expr) -> Iterator[Load]:
    """Loads that happen whatever the selections decide, repeated ones too."""
    match expr:
        case Load():
            yield expr
            for index in expr.indices:
                yield from certain_loads(index)
        case Select(condition, then, otherwise):
            yield from certain_loads(condition)
            either = set(certain_loads(otherwise))
            yield from (load for load in certain_loads(then) if load in either)
        case _:
            for child in expr.children:
                yield from certain_loads(child)


def conditions(expr: Expr) -> list[Expr]:
    """The conditions of its selections, in order."""
    return [node.condition for node in walk(expr) if isinstance(node, Select)]


def position_masks(expr: Expr) -> list[Expr]:
    """Those on positions alone by which values are chosen, as in padding."""
    return [condition for condition in conditions(expr) if not loads(condition)]
