"""Selection of common sub-expressions that get a name.

Inlined stages leave the same sub-expression several times; naming it once keeps the text as
short as the tensor expression was.
"""

from retune.core.dtypes import BOOL
from retune.ir.expr import Expr, Load, loads
from retune.ir.selections import certain_loads


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
        if count > 1 and node.dtype != BOOL and loads(node) and certain.issuperset(loads(node))
    ]
