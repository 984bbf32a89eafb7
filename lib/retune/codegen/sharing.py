"""What an expression surely reads, and which of its parts are worth a name.

Inlined stages leave the same sub-expression in several places; naming it once keeps the text as
short as the tensor expression was.
"""

from collections.abc import Iterator

from retune.ir.expr import Expr, Load, Select, loads


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


def shared_values(value: Expr) -> list[Expr]:
    """Computed parts that occur more than once and are safe to compute first, inner ones first."""
    counts: dict[Expr, int] = {}

    def visit(node: Expr) -> None:
        if isinstance(node, Load) or not node.children:
            return
        counts[node] = counts.get(node, 0) + 1
        if counts[node] == 1:
            for child in node.children:
                visit(child)
            counts[node] = counts.pop(node)  # after its parts

    visit(value)
    certain = set(certain_loads(value))
    return [
        node
        for node, count in counts.items()
        if count > 1 and node.dtype != "bool" and loads(node) and certain.issuperset(loads(node))
    ]
