"""Selections that unrolled loops decide: each iteration gets its own formula.

A transform's stage states all rows of a small matrix in one expression, and selects one by a loop
variable. Once that loop is written out, each copy of the body keeps only its row.
"""

from retune.codegen.copies import copy_body
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Select, Var, const, variables, walk
from retune.ir.stmt import For, Program, Seq, Stmt, blocks, rewrite, with_body
from retune.ir.stmt import walk as statements


def settle_choices(program: Program) -> Program:
    """No selection depends on unrolled loops alone: such loops are written out.

    Rewrite:
        for p in range(2):  # unroll
          for i: y[p, i] = select(p == 0, a[i] + b[i], a[i] - b[i])
        ->
        for i.0: y[0, i.0] = a[i.0] + b[i.0]
        for i.1: y[1, i.1] = a[i.1] - b[i.1]
    """
    chosen = _deciding_loops(program.body)
    if not chosen:
        return program

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, For) or node.var not in chosen:
            return None
        return Seq(
            tuple(copy_body(node, const(i), str(i)) for i in range(evaluate_int(node.extent)))
        )

    body = rewrite(program.body, rule)
    return with_body(program, body)


def _deciding_loops(body: Stmt) -> set[Var]:
    unrolled = {n.var for n in statements(body) if isinstance(n, For) and n.kind == "unroll"}
    chosen: set[Var] = set()
    for block in blocks(body):
        for node in walk(block.value):
            if isinstance(node, Select):
                used = variables(node.condition)
                chosen |= used if used <= unrolled else set()
    return chosen
