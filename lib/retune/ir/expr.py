"""Scalar expressions: frozen trees with smart constructors.

Read `Expr` and `Load` first. Integer semantics are stated once, here: `//` and `%` round toward
negative infinity (as numpy does); code generation may use C's truncation only where the operands
are not negative. Expressions know nothing of loops, tensors' producers, or OpenCL.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import reduce as fold
from itertools import chain
from operator import is_not
from typing import TYPE_CHECKING, Literal

from retune.core.dims import Dim, Size, SizeValues, fixed_value, remembered
from retune.core.dtypes import BOOL, FLOAT32, INT32, DType, as_dtype
from retune.ir.nodes import IRNode, node
from retune.ir.operators import COMPARISONS, OPERATORS, TIGHT, BinaryOp, folded
from retune.ir.storage import Storage

Scope = Literal["global", "constant", "local", "private", "register"]
"""Where a buffer lives. `constant` is global memory whose contents are known at compile time."""


class Expr(IRNode):
    """Base of all expressions; operators build larger ones and fold constants."""

    __slots__ = ("_loads", "_variables")
    _loads: "tuple[Load, ...]"
    _variables: "frozenset[Var]"
    if TYPE_CHECKING:

        @property
        def dtype(self) -> DType:
            """The element type: a field of each kind of expression, which nothing changes."""
            ...

    @property
    def children(self) -> tuple["Expr", ...]:
        """Direct sub-expressions, in order."""
        return ()

    def rebuild(self, children: tuple["Expr", ...]) -> "Expr":
        """The same node over other children (as many as `children`)."""
        assert not children
        return self

    def __add__(self, other: "Operand") -> "Expr":
        return binary("add", self, other)

    def __radd__(self, other: "Operand") -> "Expr":
        return binary("add", other, self)

    def __sub__(self, other: "Operand") -> "Expr":
        return binary("sub", self, other)

    def __rsub__(self, other: "Operand") -> "Expr":
        return binary("sub", other, self)

    def __mul__(self, other: "Operand") -> "Expr":
        return binary("mul", self, other)

    def __rmul__(self, other: "Operand") -> "Expr":
        return binary("mul", other, self)

    def __truediv__(self, other: "Operand") -> "Expr":
        return binary("div", self, other)

    def __rtruediv__(self, other: "Operand") -> "Expr":
        return binary("div", other, self)

    def __floordiv__(self, other: "Operand") -> "Expr":
        return binary("floordiv", self, other)

    def __mod__(self, other: "Operand") -> "Expr":
        return binary("mod", self, other)

    def __neg__(self) -> "Expr":
        return binary("sub", const(0, self.dtype), self)

    def __lt__(self, other: "Operand") -> "Expr":
        return binary("lt", self, other)

    def __le__(self, other: "Operand") -> "Expr":
        return binary("le", self, other)

    def __gt__(self, other: "Operand") -> "Expr":
        return binary("lt", other, self)

    def __ge__(self, other: "Operand") -> "Expr":
        return binary("le", other, self)

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value; use equal(), all_of() or select()")


Operand = Expr | int | float | bool


@node
class Var(Expr):
    """A named integer: a loop variable, an axis, or a tile-size symbol."""

    name: str
    dtype: DType = INT32

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


@node
class SizeVar(Var):
    """A size as a variable: it has one value in each run of a program, and knows its range."""

    size: Size = field(kw_only=True)

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[Callable[[Size], "SizeVar"], tuple[Size]]:
        return size_variable, (self.size,)


def size_variable(size: Size) -> SizeVar:
    """The variable that stands for a size."""
    return SizeVar(size.name, size=size)


@node
class Const(Expr):
    """A literal of a given type."""

    value: int | float | bool
    dtype: DType = INT32

    def __str__(self) -> str:
        return str(bool(self.value)) if self.dtype == BOOL else repr(self.value)


@node
class Binary(Expr):
    """`a op b`; comparisons and logic give bool, the rest the operands' type."""

    op: BinaryOp
    a: Expr
    b: Expr
    dtype: DType = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", BOOL if self.op in COMPARISONS else self.a.dtype)

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return binary(self.op, *children)

    def __str__(self) -> str:
        symbol, rank = OPERATORS[self.op].symbol, OPERATORS[self.op].rank
        if not symbol:
            return f"{self.op}({self.a}, {self.b})"
        gap = "" if self.op in ("mul", "div") else " "
        left = _within(self.a, rank + (rank == OPERATORS["lt"].rank))
        return f"{left}{gap}{symbol}{gap}{_within(self.b, rank + 1)}"


def _within(operand: Expr, rank: int) -> str:
    """The operand's text, in parentheses where it binds less tightly than `rank`."""
    own = OPERATORS[operand.op].rank if isinstance(operand, Binary) else TIGHT
    return f"({operand})" if own < rank else str(operand)


@node
class Call(Expr):
    """A mathematical function of its arguments, by its numpy name; see `ir.functions`."""

    function: str
    args: tuple[Expr, ...]
    dtype: DType = FLOAT32

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        if self.function == EITHER:
            return either(*children)
        return Call(self.function, children, self.dtype)

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.args))})"


@node
class Cast(Expr):
    """The value converted to another type; float to int truncates toward zero."""

    value: Expr
    dtype: DType

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.value,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return cast(children[0], self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}({self.value})"


@node
class Select(Expr):
    """`then` where `condition` holds, else `otherwise`; the other side is not evaluated."""

    condition: Expr
    then: Expr
    otherwise: Expr
    dtype: DType = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.then.dtype)

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.condition, self.then, self.otherwise)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return select(*children)

    def __str__(self) -> str:
        return f"select({self.condition}, {self.then}, {self.otherwise})"


@node
class Buffer(IRNode):
    """A named block of memory; extents may hold tile-size symbols and sizes. No storage means
    row-major."""

    name: str
    shape: tuple[Expr, ...]
    dtype: DType = FLOAT32
    scope: Scope = "global"
    storage: Storage | None = None

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


@node
class Load(Expr):
    """`buffer[indices]` in the compute type, one index for each dimension."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    dtype: DType = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.buffer.dtype.compute)

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.indices

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Load(self.buffer, children)

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(str, self.indices))}]"


BITCAST = "bitcast"
"""The function of a Call that `bitcast` makes: its type is not that of its argument."""


EITHER = "either"
"""The function of a Call that `either` makes."""


def const(value: float | bool, dtype: DType | str = INT32) -> Const:
    """A literal of the compute type; integers and booleans are held as such."""
    kind = as_dtype(dtype).compute
    if kind is INT32 and 0 <= value < len(_SMALL):
        return _SMALL[int(value)]
    if kind is BOOL:
        return Const(bool(value), kind)
    return Const(float(value) if kind.is_float else int(value), kind)


_SMALL = tuple(Const(value) for value in range(1024))
"""Nearly all literals of index expressions; made once, since lowering asks for many."""


def as_expr(value: Operand, dtype: DType | str = INT32) -> Expr:
    """The value itself if it is an expression, otherwise a number of the given type.

    An extent that depends on sizes is an expression over variables for them.
    """
    if isinstance(value, Expr):
        return value
    return cast(of_dim(value), dtype) if isinstance(value, Dim) else const(value, dtype)


@remembered(maxsize=4096)
def of_dim(dim: Dim) -> Expr:
    """An extent that depends on sizes as an expression; a size with a single value is a literal."""
    total: Expr | None = None
    for monomial, coefficient in dim.terms:
        atoms = [
            _of_size(atom)
            if isinstance(atom, Size)
            else binary("floordiv", as_expr(atom.dividend), as_expr(atom.divisor))
            for atom in monomial
        ]
        term = fold(lambda a, b: a * b, atoms, as_expr(1)) * abs(coefficient)
        if total is None:
            total = term if coefficient > 0 else -term
        else:
            total = total + term if coefficient > 0 else total - term
    assert total is not None, "a Dim has terms"
    return total


def _of_size(size: Size) -> Expr:
    value = fixed_value(size)
    return size_variable(size) if value is None else const(value)


def binary(op: BinaryOp, a: Operand, b: Operand) -> Expr:
    """`a op b` with literals folded and neutral elements removed.

    A Python number takes the other operand's type. Raises: TypeError when the operands' types
    differ, or one is neither an expression nor a number.
    """
    try:
        left = a if isinstance(a, Expr) else as_expr(a, b.dtype if isinstance(b, Expr) else INT32)
        right = b if isinstance(b, Expr) else as_expr(b, left.dtype)
    except TypeError as error:
        raise TypeError(f"{op}: expected expressions or numbers; of an Axis `.var`") from error
    if left.dtype != right.dtype:
        raise TypeError(f"{op}: operands are {left.dtype} and {right.dtype}; cast one of them")
    if isinstance(left, Const):
        if isinstance(right, Const):
            floating = left.dtype.is_float
            number = folded(op, left.value, right.value, floating=floating)
            if number is not None:
                return const(number, BOOL if op in COMPARISONS else left.dtype)
    elif not isinstance(right, Const) and op not in ("min", "max"):
        return Binary(op, left, right)
    simpler = _neutral(op, left, right)
    return Binary(op, left, right) if simpler is None else simpler


def _neutral(op: BinaryOp, a: Expr, b: Expr) -> Expr | None:
    """`x + 0 -> x`, `x * 1 -> x`, `x * 0 -> 0` (integers), `x // 1 -> x`, `x % 1 -> 0`, ..."""
    left = a.value if isinstance(a, Const) else None
    right = b.value if isinstance(b, Const) else None
    integer = not a.dtype.is_float
    match op:
        case "add" if integer and left == 0:
            return b
        case "add" | "sub" if integer and right == 0:
            return a
        case "mul" if left == 1:
            return b
        case "mul" | "div" | "floordiv" if right == 1:
            return a
        case "mul" if integer and (left == 0 or right == 0):
            return const(0, a.dtype)
        case "mod" if right == 1:
            return const(0, a.dtype)
        case "and" if left is True or right is True:
            return b if left is True else a
        case "or" if left is False or right is False:
            return b if left is False else a
        case "and" if left is False or right is False:
            return const(False, BOOL)
        case "min" | "max" if a == b:
            return a
        case _:
            return None


def minimum(a: Operand, b: Operand) -> Expr:
    """The smaller of two values; NaN if either is, as in numpy."""
    return binary("min", a, b)


def maximum(a: Operand, b: Operand) -> Expr:
    """The larger of two values; NaN if either is, as in numpy."""
    return binary("max", a, b)


def power(a: Operand, b: Operand) -> Expr:
    """`a ** b` for floating-point operands."""
    return binary("pow", a, b)


def equal(a: Operand, b: Operand) -> Expr:
    """`a == b` as an expression (`==` itself compares the trees)."""
    return binary("eq", a, b)


def all_of(*conditions: Expr) -> Expr:
    """True where every condition holds; True for none."""
    result: Expr = const(True, BOOL)
    for condition in conditions:
        result = binary("and", result, condition)
    return result


def conjuncts(condition: Expr | None) -> list[Expr]:
    """The conditions that `all_of` joined, in order; none for None."""
    if condition is None:
        return []
    if isinstance(condition, Binary) and condition.op == "and":
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [condition]


def select(condition: Operand, then: Operand, otherwise: Operand) -> Expr:
    """`then` where `condition` holds, else `otherwise`; a literal takes the other side's type."""
    test = as_expr(condition, BOOL)
    model = then if isinstance(then, Expr) else otherwise
    dtype = model.dtype if isinstance(model, Expr) else FLOAT32
    left, right = as_expr(then, dtype), as_expr(otherwise, dtype)
    if isinstance(test, Const):
        return left if test.value else right
    return Select(test, left, right)


def either(condition: Expr, value: Expr, other: Expr) -> Expr:
    """As `select`, but both are evaluated: what they read has to be there in either case."""
    if isinstance(condition, Const):
        return value if condition.value else other
    return Call(EITHER, (condition, value, other), value.dtype)


def cast(value: Expr, dtype: DType | str) -> Expr:
    """The value as another type, or as the compute type of one that is only stored.

    The value itself where it has that type already.
    """
    kind = as_dtype(dtype).compute
    if value.dtype is kind:
        return value
    return const(value.value, kind) if isinstance(value, Const) else Cast(value, kind)


def bitcast(value: Expr, dtype: DType | str) -> Expr:
    """The bits of a number as one of another type of the same size."""
    kind = as_dtype(dtype)
    return value if value.dtype is kind else Call(BITCAST, (value,), kind)


def ceildiv(a: Operand, b: Operand) -> Expr:
    """`a / b` rounded up, for b > 0."""
    left, right = as_expr(a), as_expr(b)
    return (left + right - 1) // right


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node of the tree, parents before children."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        if children := node.children:
            stack.extend(reversed(children))


def depth(expr: Expr) -> int:
    """Nodes on the longest way down the tree."""
    deepest = 0
    stack = [(expr, 1)]
    while stack:
        node, level = stack.pop()
        deepest = max(deepest, level)
        stack.extend((child, level + 1) for child in node.children)
    return deepest


class Rewriter:
    """An expression for each one that it is called with; what they share is rewritten once."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[Expr, Expr]] = {}
        """By identity, and the part itself, so that its identity stays its own."""

    def __call__(self, expr: Expr) -> Expr:
        known = self._done.get(id(expr))
        if known is None:
            known = self._done[id(expr)] = (expr, self.rewritten(expr))
        return known[1]

    def rewritten(self, expr: Expr) -> Expr:
        """The rewritten expression; here, the same node over rewritten children."""
        if isinstance(expr, Binary):  # most are
            a, b = self(expr.a), self(expr.b)
            return expr if a is expr.a and b is expr.b else binary(expr.op, a, b)
        children = expr.children
        new = tuple([self(child) for child in children])
        return expr.rebuild(new) if any(map(is_not, new, children)) else expr


class Substitution(Rewriter):
    """Expressions with each variable replaced; untouched parts are shared."""

    def __init__(self, values: Mapping[Var, Expr]) -> None:
        super().__init__()
        self._values = values

    def rewritten(self, expr: Expr) -> Expr:
        if isinstance(expr, Var):
            return self._values.get(expr, expr)
        return super().rewritten(expr)


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """`Substitution` of one expression."""
    return Substitution(values)(expr)


def fixed_sizes(expr: Expr, values: SizeValues) -> Expr:
    """The expression with these values instead of sizes."""
    known: dict[Var, Expr] = {
        v: const(values[v.name]) for v in size_variables(expr) if v.name in values
    }
    return substitute(expr, known) if known else expr


class Redirection(Rewriter):
    """Expressions with each load as `change` gives it, inner ones first; None leaves it alone."""

    def __init__(self, change: Callable[[Load], Expr | None]) -> None:
        super().__init__()
        self._change = change

    def __call__(self, expr: Expr) -> Expr:
        return super().__call__(expr) if loads(expr) else expr

    def rewritten(self, expr: Expr) -> Expr:
        expr = super().rewritten(expr)
        changed = self._change(expr) if isinstance(expr, Load) else None
        return expr if changed is None else changed


def redirect(expr: Expr, change: Callable[[Load], Expr | None]) -> Expr:
    """`Redirection` of one expression."""
    return Redirection(change)(expr)


def converted(value: Expr, stored: Buffer) -> Expr:
    """The value with the conversions of its loads, and of its store in that buffer, stated.

    Those between memory of one type are left out: they change nothing.
    """
    own = stored.dtype
    if own is not own.compute:
        read = [load.buffer.dtype for load in loads(value) if load.dtype is value.dtype]
        if any(dtype is not own for dtype in read):
            return Cast(value, own)

    def convert(load: Load) -> Expr | None:
        plain = load.buffer.dtype in (load.dtype, own)
        return None if plain else Cast(load, load.dtype)

    return redirect(value, convert)


def variables(expr: Expr) -> frozenset[Var]:
    """All variables that occur; each node knows its own once it was asked."""
    try:
        return expr._variables  # noqa: SLF001
    except AttributeError:
        own = frozenset((expr,)) if isinstance(expr, Var) else _NO_VARIABLES
        found = own.union(*map(variables, expr.children))
        object.__setattr__(expr, "_variables", found)
        return found


_NO_VARIABLES: frozenset[Var] = frozenset()


def is_symbol(var: Var) -> bool:
    """Whether it is a size or a number of a decision, and not a loop's."""
    return "@" in var.name or isinstance(var, SizeVar)


def size_variables(expr: Expr) -> frozenset[SizeVar]:
    """The sizes that occur."""
    return frozenset(v for v in variables(expr) if isinstance(v, SizeVar))


def loads(expr: Expr) -> tuple[Load, ...]:
    """All loads, in order of occurrence, repeated ones too; each node knows its own."""
    try:
        return expr._loads  # noqa: SLF001
    except AttributeError:
        own = (expr,) if isinstance(expr, Load) else ()
        found = tuple(chain(own, *map(loads, expr.children)))
        object.__setattr__(expr, "_loads", found)
        return found
