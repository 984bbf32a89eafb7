"""The form between loops and text, as it is read by people: one golden for each idea."""

from collections.abc import Callable

from retune.codegen.emit import KernelBody
from retune.codegen.frame import Frame, Scope
from retune.codegen.kernel import ForLoop, Literal, Name, Value
from retune.codegen.lower import finished
from retune.codegen.names import Identifiers
from retune.codegen.target import CPU
from retune.core.dtypes import INT32
from retune.ir.expr import Expr, Var, minimum
from retune.ir.flat import FlatIndices
from retune.ir.simplify import Range, polynomial
from retune.ir.stmt import from_dag
from retune.schedule.schedule import Schedule
from tests.support.dags import dense, depthwise
from tests.support.kernel_text import shown

ROW, COLUMN = Var("i"), Var("j")


def hoisted(build: Callable[[Frame], list[Value]]) -> str:
    """The scopes of two loops after some sums were asked for in the inner one."""
    frame = Frame(
        groups=CPU.alone,
        names=Identifiers(()),
        integer=lambda expr: Literal(0, expr.dtype),
        flat=FlatIndices(),
        ranges={ROW: Range(0, 3), COLUMN: Range(0, 7)},
    )
    frame.scopes += [Scope({ROW}), Scope({COLUMN})]
    values = build(frame)
    outer, *loops = frame.scopes
    for scope, var, extent in reversed(list(zip(loops, (ROW, COLUMN), (4, 8), strict=True))):
        around = frame.scopes[frame.scopes.index(scope) - 1]
        loop = ForLoop(Name(var.name, INT32), extent, 1, (), tuple(scope.statements))
        around.statements.append(loop)
    return "\n".join([shown(outer.statements), *map(str, values)])


def test_sums_share_what_is_known_outside():
    found = hoisted(
        lambda h: [
            h.hoist(polynomial(ROW * 64 + COLUMN * 2), "x"),
            h.hoist(polynomial(ROW * 64 + COLUMN), "y"),
        ]
    )
    assert found == (
        "for i in range(4):\n"
        "  let x_at = (i * 64)\n"
        "  for j in range(8):\n"
        "    let x_at_1 = (x_at + (j * 2))\n"
        "    let y_at = (x_at + j)\n"
        "x_at_1\n"
        "y_at"
    )


def test_a_variable_alone_needs_no_name():
    assert hoisted(lambda h: [h.hoist(polynomial(ROW + 0), "x")]).endswith("\ni")


def test_a_minimum_is_named_in_the_scope_of_its_variables():
    limit: Expr = minimum(ROW * 3, 5)
    found = hoisted(lambda h: [h.hoist(polynomial(limit * 16 + COLUMN), "x")])
    assert "for i in range(4):\n  let t = 0\n  let x_at = (t * 16)\n" in found


def body(s: Schedule) -> str:
    """The statements of a schedule's first nest."""
    nest = finished(s.program).body.stmts[0]
    return shown(KernelBody(nest, CPU.groups(nest), ()).emit())


def test_copies_of_a_loop_read_what_they_share_once(golden):
    """Two rows and two columns: four products of four reads, not of eight."""
    s = Schedule(from_dag(dense(4, 6, 8, epilogue=False), "net"))
    i, j, k = s.loops("y")
    (rows, row), (columns, column) = s.split(i, [2]), s.split(j, [2])
    s.reorder(rows, columns, k, row, column)
    for loop in (row, column):
        s.unroll(loop)
    assert body(s) == golden


def window(*, rows_inside: bool) -> Schedule:
    """Three pixels beside each other under a window over padding, its rows as the inner loop."""
    s = Schedule(from_dag(depthwise(1, 4, 6, 4), "net"))
    s.compute_inline("padded")
    *_, columns, channels, down, across = s.loops("conv")
    tiles, pixel = s.split(columns, [3])
    reduce = (across, down) if rows_inside else (down, across)
    s.reorder(tiles, channels, *reduce, pixel)
    s.unroll(pixel)
    return s


def test_what_all_blocks_of_a_loop_ask_is_tested_once_before_it(golden):
    """Whether the row is inside; each pixel has its own test of columns."""
    assert body(window(rows_inside=False)) == golden


def test_a_loop_has_a_version_without_the_tests_that_it_does_not_change(golden):
    """Those of the columns: they usually hold, and are joined before a loop over rows."""
    assert body(window(rows_inside=True)) == golden
