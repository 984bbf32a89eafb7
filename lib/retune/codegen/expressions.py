"""Scalar expressions and assignments as OpenCL C text, for one iteration of straight-line code.

An `Instance` is a block with its unrolled loop variables settled, and at most one loop that runs
as vector lanes. Text comes with its number of lanes: scalars are widened only where a function or
an assignment needs it.
"""

from collections.abc import Iterator, Sequence

from retune.codegen import dots, gathers, opencl
from retune.codegen.addresses import Addresses, Instance, Names, Place
from retune.codegen.sharing import shared_values
from retune.codegen.widths import integer_type, sum_type
from retune.core.dtypes import is_unsigned
from retune.core.errors import CodegenError
from retune.ir.expr import (
    BITCAST,
    BITWISE,
    COMPARISONS,
    TESTS,
    Binary,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Var,
    conjuncts,
    const,
    loads,
    substitute,
    variables,
)
from retune.ir.flat import flat_terms
from retune.ir.selections import certain_loads
from retune.ir.simplify import Polynomial, affine_terms, bounds, polynomial, simplify
from retune.ir.stmt import Block

Text = tuple[str, int]
"""C text and its number of lanes."""


def vectorizable(block: Block, var: Var, *, reduce: bool) -> bool:
    """True when the block can run as vector lanes of `var`: plain types and adjacent stores.

    Lanes of a `reduce` loop all go to one element instead, so its index must not change.
    """
    if block.buffer.dtype not in opencl.VECTOR_TYPES:
        return False
    if any(load.dtype not in opencl.VECTOR_TYPES for load in loads(block.value)):
        return False
    form = affine_terms(flat_terms(block.buffer, block.indices), [var])
    if form is None or form[0].get(var) != (None if reduce else const(1)):
        return False
    if reduce and block.reducer is None:
        return False
    if block.guard is not None and var in variables(block.guard):
        return False
    return _lanes_only_in_loads(block.value, var)


def _lanes_only_in_loads(expr: Expr, var: Var) -> bool:
    match expr:
        case Load():
            return True
        case Var():
            return expr != var
        case Select(condition, _, _) if var in variables(condition) and not loads(condition):
            return False  # a mask over indices guards its reads: lanes must be apart
        case Cast(value, dtype):
            plain = value.dtype in opencl.VECTOR_TYPES and dtype in opencl.VECTOR_TYPES
            return plain and _lanes_only_in_loads(value, var)
        case _:
            return all(_lanes_only_in_loads(child, var) for child in expr.children)


class ExpressionPrinter:
    """Prints the expressions of instances; `named` holds the reads that have a name already.

    `lanes` holds the elements that are lanes of such reads.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self.named: dict[Place, str] = {}
        self.lanes: dict[Place, gathers.Lane] = {}
        self._tests: dict[object, str] = {}
        self._starts: dict[tuple[str, int], str] = {}
        self._addresses = Addresses(names)
        self._certain: dict[str, list[Load]] = {}
        self._shared: dict[str, list[Expr]] = {}
        self._values: dict[Expr, Text] = {}

    # -- assignments ---------------------------------------------------------------------------

    def statements(self, instance: Instance) -> list[str]:
        """The assignment, after the values that it repeats; its guard is the caller's business.

        Raises: CodegenError where the lanes of a vector are not stored side by side.
        """
        block = instance.block
        place = self._addresses.of(block.buffer, block.indices, instance)
        lanes = instance.lane[1] if instance.lane else 1
        across = place is not None and place.lanes == 1 and block.reducer is not None
        if place is None or (place.lanes != lanes and not across):
            raise CodegenError(f"{block.name}: its stores are not adjacent")
        lines = self._name_values(instance)
        target = self._place(place)
        half = block.buffer.dtype == "float16" and block.reducer is None and target is None
        if half and (wide := _as_float32(block.value)) is not None:
            pointer, value = self.names.identifier(place.buffer.name), self._wide(wide, instance, 1)
            return [*lines, opencl.store_half(pointer, place.index, value)]
        old = target or self.read_text(place)
        if place.lanes < lanes:
            value = self._across_lanes(instance, old, lanes, lines)
            lanes = 1
        else:
            value = opencl.bare(self._updated(instance, old, lanes))
        if target is not None:
            lines.append(f"{target} = {value};")
        else:
            pointer = self.names.identifier(place.buffer.name)
            kind = self._vector_memory(place)
            lines.append(opencl.store(pointer, place.index, lanes, value, kind))
        return lines

    def guard(self, instance: Instance, established: Sequence[Expr]) -> str:
        """The test under which an instance runs: empty if it always does, `0` if it never does.

        Parts that are `established` already, or that the ranges of the loops prove, are left out.
        """
        if instance.block.guard is None:
            return ""
        terms = [t for t in conjuncts(instance.block.guard) if t not in established]
        return self.condition(terms, instance)

    def condition(self, terms: Sequence[Expr], instance: Instance) -> str:
        """All of the terms as C text; empty if they always hold, `0` if they never do."""
        left: list[str] = []
        for term in terms:
            text = self._test(term, instance)
            if text == "0":
                return text
            left.extend([text] if text else [])
        return " && ".join(left)

    def _test(self, term: Expr, instance: Instance) -> str:
        env = tuple((v, instance.env[v]) for v in variables(term) if v in instance.env)
        key = (term, frozenset(env), instance.lane)
        if key not in self._tests:
            settled = substitute(term, {v: const(i) for v, i in env})
            settled = simplify(settled, self._addresses.ranges(instance))
            if isinstance(settled, Const):
                self._tests[key] = "" if settled.value else "0"
            else:
                text, _ = self.text(settled, instance)
                either = isinstance(settled, Binary) and settled.op == "or"
                self._tests[key] = text if either else opencl.bare(text)  # others are joined to it
        return self._tests[key]

    def _name_values(self, instance: Instance) -> list[str]:
        """Declarations of the values that the block computes once and uses several times."""
        block = instance.block
        if block.name not in self._shared:
            self._shared[block.name] = shared_values(block.value)
        self._values = {}
        lines: list[str] = []
        for node in self._shared[block.name]:
            text, lanes = self.text(node, instance)
            name = self.names.fresh("value")
            lines.append(
                f"const {opencl.type_name(node.dtype, lanes)} {name} = {opencl.bare(text)};"
            )
            self._values[node] = (name, lanes)
        return lines

    def start_value(self, instance: Instance) -> str | None:
        """The text of the literal that an instance sets a register to; None if it does not."""
        block = instance.block
        plain = block.reducer is None and block.guard is None and isinstance(block.value, Const)
        if not plain or not self.names.registers.get(block.buffer):
            return None
        lanes = instance.lane[1] if instance.lane else 1
        key = (block.name, lanes)
        if key not in self._starts:
            self._starts[key] = self._updated(instance, "", lanes)
        return self._starts[key]

    def target(self, instance: Instance) -> str:
        """The name of the register that an instance sets. Raises: CodegenError if it sets none."""
        block = instance.block
        place = self._addresses.of(block.buffer, block.indices, instance)
        target = None if place is None else self._place(place)
        if target is None:
            raise CodegenError(f"{block.name}: its stores are not adjacent")
        return target

    def _updated(self, instance: Instance, old: str, lanes: int) -> str:
        block, dtype = instance.block, instance.block.buffer.dtype
        value = block.value
        if block.reducer is None:
            text, width = self.text(value, instance)
            if value.dtype == "bool":
                text = f"({text} ? 1 : 0)"
            return opencl.splat(text, dtype, lanes) if width < lanes else text
        if block.reducer == "sum" and _is_product(value) and dtype == "float32":
            assert isinstance(value, Binary)
            a, b = (self._wide(e, instance, lanes) for e in (value.a, value.b))
            return f"fma({a}, {b}, {old})"
        if isinstance(value, Call) and value.function == dots.FUNCTION:
            return self._dot(value, instance, old, lanes)
        return opencl.combine(block.reducer, old, self._typed(value, instance, lanes))

    def _dot(self, call: Call, instance: Instance, old: str, lanes: int) -> str:
        a, b = (self._wide(word, instance, lanes) for word in call.args)
        return f"{dots.dot_function(call, lanes).name}({a}, {b}, {old})"

    def _across_lanes(self, instance: Instance, old: str, lanes: int, lines: list[str]) -> str:
        """The lanes of the value combined by halves, and with `old`; `lines` gets the halves."""
        block, dtype = instance.block, instance.block.buffer.dtype
        assert block.reducer is not None
        text = self._wide(block.value, instance, lanes)
        while lanes > 1:
            name = self.names.fresh("lanes")
            kind = opencl.type_name(dtype, lanes)
            lines.append(f"const {kind} {name} = {opencl.bare(text)};")
            text = opencl.combine(block.reducer, f"{name}.lo", f"{name}.hi")
            lanes //= 2
        if block.reducer in ("sum", "prod"):
            text = f"({text})"
        return opencl.combine(block.reducer, old, text)

    # -- reads ---------------------------------------------------------------------------------

    def certain_reads(self, instance: Instance, written: set[Buffer]) -> list[Place | None]:
        """Places of reads that happen whenever the instance runs and see no store beside it.

        None for a read whose lanes are not adjacent, see `scattered_reads`.
        """
        of = self._addresses.of
        found = self._certain_loads(instance.block, written)
        return [of(load.buffer, load.indices, instance) for load in found]

    def scattered_reads(self, instance: Instance, written: set[Buffer]) -> Iterator[Place]:
        """Places of the lanes of certain reads whose lanes are not adjacent."""
        if instance.lane is None:
            return
        var, lanes = instance.lane
        whole = self.certain_reads(instance, written)
        for load, place in zip(self._certain_loads(instance.block, written), whole, strict=True):
            if place is None:
                for i in range(lanes):
                    one = Instance(instance.block, {**instance.env, var: i}, None)
                    read = self._addresses.of(load.buffer, load.indices, one)
                    if read is not None:
                        yield read

    def _certain_loads(self, block: Block, written: set[Buffer]) -> list[Load]:
        if block.name not in self._certain:
            self._certain[block.name] = [
                load
                for load in certain_loads(block.value)
                if load.buffer not in self.names.registers
                and load.dtype != "float16"  # no device needs to know a name of that type
                and not any(inner.buffer in written for inner in loads(load))
            ]
        return self._certain[block.name]

    def read_text(self, read: Place) -> str:
        """The read as C text."""
        pointer = self.names.identifier(read.buffer.name)
        return opencl.load(pointer, read.index, read.lanes, self._vector_memory(read))

    def _vector_memory(self, place: Place) -> str:
        """The type of aligned vectors there, as `__local float4`; empty where to copy parts."""
        space = opencl.ADDRESS_SPACE.get(place.buffer.scope)
        whole = self.names.groups.aligned_vectors and place.lanes > 1 and place.aligned
        if not whole or space is None:
            return ""
        return f"{space} {opencl.type_name(place.buffer.dtype, place.lanes)}"

    def _place(self, read: Place) -> str | None:
        """The name of the register that a read or write goes to; None for memory."""
        lanes = self.names.registers.get(read.buffer, 0)
        if not lanes:
            return None
        if read.base or read.lanes != lanes or read.offset % lanes:
            raise CodegenError(f"{read.buffer}: [{read.index}] is not a register")
        return self.names.identifier(read.buffer.name, read.offset // lanes)

    def _in_memory(self, load: Load, instance: Instance) -> bool:
        read = self._addresses.of(load.buffer, load.indices, instance)
        return read is not None and read.lanes == 1 and self._place(read) is None

    # -- expressions ---------------------------------------------------------------------------

    def text(self, expr: Expr, instance: Instance) -> Text:
        """The expression as C text, and its lanes.

        Raises: CodegenError for one that has no form in C, such as a read of scattered lanes.
        """
        if self._values and expr in self._values:
            return self._values[expr]
        match expr:
            case Const(value, dtype):
                return opencl.literal(value, dtype), 1
            case Load():
                return self._load(expr, instance)
            case Var():
                return self._integer(expr, instance), 1
            case Binary() if expr.dtype == "int32" and not loads(expr):
                return self._integer(expr, instance), 1
            case Binary():
                return self._binary(expr, instance)
            case Select():
                return self._select(expr, instance)
            case Cast(Load(dtype="float16") as load, "float32") if self._in_memory(load, instance):
                read = self._addresses.of(load.buffer, load.indices, instance)
                assert read is not None
                return opencl.load_half(self.names.identifier(load.buffer.name), read.index), 1
            case Cast(value, dtype):
                text, lanes = self.text(value, instance)
                if dtype == "bool":
                    return f"({text} != 0)", lanes
                return f"convert_{opencl.type_name(dtype, lanes)}({text})", lanes
            case Call(dots.FUNCTION):
                lanes = max(self.text(a, instance)[1] for a in expr.args)
                zero = opencl.splat("0", expr.dtype, lanes)
                return self._dot(expr, instance, zero, lanes), lanes
            case Call():
                return self._call(expr, instance)
            case _:
                raise CodegenError(f"cannot print {type(expr).__name__}")

    def _call(self, call: Call, instance: Instance) -> Text:
        lanes = max(self.text(a, instance)[1] for a in call.args)
        wide = [self._typed(a, instance, lanes) for a in call.args]
        if call.function == BITCAST:
            return opencl.bitcast(wide[0], call.dtype, lanes), lanes
        if call.function in TESTS:
            return opencl.special(call.function, wide[0], call.args[0].dtype, lanes), lanes
        return f"{opencl.FUNCTION[call.function]}({', '.join(wide)})", lanes

    def _wide(self, expr: Expr, instance: Instance, lanes: int) -> str:
        text, width = self.text(expr, instance)
        return opencl.splat(text, expr.dtype, lanes) if width < lanes else text

    def _typed(self, expr: Expr, instance: Instance, lanes: int) -> str:
        """An argument of a function that C chooses by its arguments' types."""
        text = self._wide(expr, instance, lanes)
        plain = expr.dtype not in opencl.NARROW_TYPES or isinstance(expr, Load | Cast)
        return text if plain else opencl.exactly(text, expr.dtype)

    def _load(self, load: Load, instance: Instance) -> Text:
        read = self._addresses.of(load.buffer, load.indices, instance)
        if read is not None:
            place = self._place(read)
            if place is None:
                lane = self.lanes.get(read)
                place = self.named.get(read) or (lane.text if lane else self.read_text(read))
            return place, read.lanes
        assert instance.lane is not None
        var, lanes = instance.lane
        ones = [Instance(instance.block, {**instance.env, var: i}, None) for i in range(lanes)]
        places = [self._addresses.of(load.buffer, load.indices, one) for one in ones]
        parts = [self.lanes[p] for p in places if p in self.lanes]
        if len(parts) == lanes and (text := gathers.shuffled(parts, load.dtype)):
            return text, lanes
        values = [self._load(load, one)[0] for one in ones]
        return f"({opencl.type_name(load.dtype, lanes)})({', '.join(values)})", lanes

    def _binary(self, expr: Binary, instance: Instance) -> Text:
        left, right = self.text(expr.a, instance), self.text(expr.b, instance)
        lanes = max(left[1], right[1])
        if expr.op in ("min", "max", "pow"):
            a, b = (self._typed(e, instance, lanes) for e in (expr.a, expr.b))
            return f"{opencl.FUNCTION[expr.op]}({a}, {b})", lanes
        if expr.op in ("floordiv", "mod"):
            text = self._divide(expr.op, left[0], right[0], expr.dtype)
        elif expr.op in ("eq", "ne") and expr.a.dtype == "bool" and left[1] != right[1]:
            # what is true is 1 alone, and -1 in each lane of a vector
            a, b = (f"(-{text})" if n == 1 else text for text, n in (left, right))
            text = f"({a} {opencl.INFIX[expr.op]} {b})"
        else:
            text = f"({left[0]} {opencl.INFIX[expr.op]} {right[0]})"
        wraps = expr.dtype in opencl.NARROW_TYPES
        return opencl.exactly(text, expr.dtype) if wraps else text, lanes

    def _divide(self, op: str, a: str, b: str, dtype: str) -> str:
        """Division and remainder that round toward negative infinity, as numpy's do."""
        if dtype.startswith("float"):
            quotient = f"floor({a} / {b})"
            return quotient if op == "floordiv" else f"({a} - {quotient} * {b})"
        if is_unsigned(dtype):
            return f"({a} {'/' if op == 'floordiv' else '%'} {b})"
        remainder = f"((({a}) % ({b}) + ({b})) % ({b}))"
        return f"(({a} - {remainder}) / ({b}))" if op == "floordiv" else remainder

    def _select(self, expr: Select, instance: Instance) -> Text:
        """A selection; what the ranges of the loops prove of a test over indices is left out."""
        condition, test_lanes = self._choice(expr.condition, instance)
        if condition in ("", "0"):
            return self.text(expr.otherwise if condition else expr.then, instance)
        then, otherwise = self.text(expr.then, instance), self.text(expr.otherwise, instance)
        lanes = max(then[1], otherwise[1], test_lanes)
        a, b = (self._wide(e, instance, lanes) for e in (expr.then, expr.otherwise))
        if test_lanes > 1:
            return f"select({b}, {a}, {condition})", lanes
        return f"({condition} ? {a} : {b})", lanes

    def _choice(self, condition: Expr, instance: Instance) -> Text:
        """The test of a selection: empty if it always holds, `0` if it never does."""
        lane = instance.lane and instance.lane[0]
        if loads(condition) or lane in variables(condition):
            return self.text(condition, instance)
        terms = conjuncts(condition)
        if all(self._test(term, instance) not in ("", "0") for term in terms):
            return self.text(condition, instance)
        text = self.condition(terms, instance)
        return (text if text in ("", "0") else f"({text})"), 1

    def _integer(self, expr: Expr, instance: Instance) -> str:
        """An integer expression without reads, with its parts hoisted."""
        terms = polynomial(simplify(expr, self._addresses.ranges(instance)))
        terms = self._addresses.resolve(terms, instance)
        return self._sum(terms)

    def _sum(self, terms: Polynomial) -> str:
        offset = terms.pop((), 0)
        if not terms:
            return str(offset)
        base = self.names.hoist(terms, "i")
        if sum_type([*terms.items(), ((), offset)], self.names.ranges) == "long":
            base = f"(long){base}"
        return f"({base} + {offset})" if offset else base

    def integer(self, expr: Expr) -> str:
        """A division, minimum, selection or read that an address needs, over hoisted parts."""
        match expr:
            case Binary(op, a, b) if op in ("min", "max"):
                types = {integer_type(part, self.names.ranges) for part in (a, b)}
                as_long = "(long)" if "long" in types else ""
                return f"{op}({as_long}{self._part(a)}, {as_long}{self._part(b)})"
            case Binary("floordiv" | "mod" as op, a, b):
                low = bounds(a, self.names.ranges)
                left, right = self._part(a), self._part(b)
                if low is not None and low.low >= 0:
                    return f"({left} {'/' if op == 'floordiv' else '%'} {right})"
                return self._divide(op, left, right, "int32")
            case Binary(op, a, b) if op in COMPARISONS | BITWISE:
                return f"({self._part(a)} {opencl.INFIX[op]} {self._part(b)})"
            case _:
                return self.text(expr, Instance(_NOWHERE, {}, None))[0]

    def _part(self, expr: Expr) -> str:
        if expr.dtype == "bool":
            return self.integer(expr)
        return self._sum(polynomial(expr))


_NOWHERE = Block("address", Buffer("address", ()), (), const(0))


def _as_float32(expr: Expr) -> Expr | None:
    """A float16 that is only moved or made from a float32, as a float32; None for arithmetic."""
    match expr:
        case Load():
            return Cast(expr, "float32")
        case Cast(value, _):
            return value if value.dtype == "float32" else None
        case Const(value, _):
            return const(value, "float32")
        case Select(condition, then, otherwise):
            a, b = _as_float32(then), _as_float32(otherwise)
            return None if a is None or b is None else Select(condition, a, b)
        case _:
            return None


def _is_product(expr: Expr) -> bool:
    return isinstance(expr, Binary) and expr.op == "mul"
