"""Scalar expressions and assignments as values and statements, for one iteration of straight-line
code.

An `Instance` is a block with its unrolled loop variables settled, and at most one loop that runs
as vector lanes. Scalars are widened only where a function or an assignment needs it.
"""

from collections.abc import Iterator, Sequence

from retune.codegen.addresses import Address, Addresses, Instance
from retune.codegen.attention import AttentionCall
from retune.codegen.frame import Frame
from retune.codegen.intrinsics import called, signature_of
from retune.codegen.kernel import (
    COPIED_BYTES,
    Assign,
    At,
    CopyAhead,
    Declare,
    Function,
    GroupCall,
    Literal,
    Memory,
    MemoryLoad,
    Name,
    Operation,
    Statement,
    Store,
    Together,
    Value,
)
from retune.codegen.lookups import index_of, is_lookup, looked_up, lookups
from retune.codegen.passes import gathers
from retune.codegen.passes.sharing import shared_values
from retune.codegen.registers import lane_bound
from retune.codegen.widths import integer_type, sum_type
from retune.core.dtypes import BOOL, FLOAT32, INT32, INT64, DType
from retune.core.errors import CodegenError
from retune.intrinsics import Intrinsic
from retune.ir.expr import (
    EITHER,
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
    size_variables,
    substitute,
    variables,
)
from retune.ir.operators import BITWISE, COMPARISONS
from retune.ir.selections import certain_loads
from retune.ir.simplify import Polynomial, bounds, follows, polynomial, simplify
from retune.ir.stmt import Block

_BYTE = 0xFF
"""Mask of the most bits that `float_of_bits` takes."""


class Expressions:
    """The values of instances; `named` holds the reads that have a name already.

    `lanes` holds the elements that are lanes of such reads, and `past` what is stored past the
    caches.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self.named: dict[Address, Name] = {}
        self.lanes: dict[Address, gathers.Lane] = {}
        self.past: frozenset[Address] = frozenset()
        self._tests: dict[object, Value | bool] = {}
        self._starts: dict[tuple[str, int], Value] = {}
        self._addresses = Addresses(frame)
        self._certain: dict[str, list[Load]] = {}
        self._shared: dict[tuple[str, bool], list[Expr]] = {}
        self._values: dict[Expr, Value] = {}

    def forget(self, runs: gathers.Runs) -> None:
        """The elements, and what they are lanes of, have no names any more: their scope ends."""
        for address, (vector, _) in runs.items():
            self.lanes.pop(address, None)
            self.named.pop(vector, None)

    # -- assignments ---------------------------------------------------------------------------

    def statements(self, instance: Instance) -> list[Statement]:
        """The assignment, after the values that it repeats; its guard is the caller's business.

        Raises: CodegenError where the lanes of a vector are not stored side by side.
        """
        block = instance.block
        if (call := AttentionCall.of(block)) is not None:
            return [self._group_call(call, instance)]
        address = self.address(instance)
        lanes = instance.lane[1] if instance.lane else 1
        across = address is not None and address.lanes == 1 and block.reducer is not None
        if address is None or (address.lanes != lanes and not across):
            raise CodegenError(f"{block.name}: its stores are not adjacent")
        made = self._name_values(instance)
        target = self._register(address)
        old = target or self.load(address)
        entry = called(block.value)
        if entry is not None and entry.warp is not None:
            return [*made, self._together(entry, old, instance)]
        if address.lanes < lanes:
            value = self._across_lanes(instance, old, lanes, made)
        else:
            value = self._updated(instance, old, lanes)
        stored = Store(self._at(address), value, address in self.past)
        made.append(stored if target is None else Assign((target,), value))
        return made

    def address(self, instance: Instance) -> Address | None:
        """Where the instance writes; None where its lanes are not adjacent."""
        return self._addresses.of(instance.block.buffer, instance.block.indices, instance)

    def _together(self, entry: Intrinsic, first: Value, instance: Instance) -> Statement:
        """The sums of an item, of which its call has all but the first, with what it adds."""
        values = [self.value(arg, instance) for arg in instance.block.value.children]
        count = len(values) + 1 - entry.m
        sums = tuple(v for v in (first, *values[count:]) if isinstance(v, Name))
        if len(sums) != entry.m:
            raise CodegenError(f"{instance.block.name}: its sums are not in registers")
        packs = tuple(values[:count])
        return Together(Function(entry.name, signature_of(packs)), sums, packs)

    def _group_call(self, call: AttentionCall, instance: Instance) -> Statement:
        """A call by all items of a group, with the addresses at which its operands start."""
        block = instance.block

        def address(buffer: Buffer, indices: tuple[Expr, ...]) -> At:
            found = self._addresses.of(buffer, indices, instance)
            assert found is not None, "no lanes are around it"
            return self._at(found)

        return GroupCall(
            call.function,
            address(block.buffer, block.indices),
            tuple(address(load.buffer, load.indices) for load in call.starts),
            tuple(self.value(number, instance) for number in call.numbers),
            Memory(self._frame.names.fresh("held"), INT32, "local"),
        )

    def guard(self, instance: Instance, established: Sequence[Expr]) -> tuple[Value, ...] | None:
        """The tests under which an instance runs: none if it always does, None if it never does.

        Parts that are `established` already, or that the ranges of the loops prove, are left out.
        """
        if instance.block.guard is None:
            return ()
        terms = [t for t in conjuncts(instance.block.guard) if t not in established]
        return self.condition(terms, instance)

    def condition(self, terms: Sequence[Expr], instance: Instance) -> tuple[Value, ...] | None:
        """Tests of all the terms; none if they always hold, None if they never do."""
        left: list[Value] = []
        for term in terms:
            test = self._test(term, instance)
            if test is False:
                return None
            if test is not True:
                left.append(test)
        return tuple(left)

    def _test(self, term: Expr, instance: Instance) -> Value | bool:
        """The condition as a value of the kernel, or its truth where ranges of loops prove that."""
        used = [v for v in variables(term) if v.name in instance.env]
        env = tuple([(v, instance.env[v.name]) for v in used])
        key = (term, frozenset(env), instance.lane)
        if key not in self._tests:
            settled = self._frame.settled.get(key)
            if settled is None:
                settled = substitute(term, {v: const(i) for v, i in env})
                settled = simplify(settled, self._addresses.ranges(instance))
                self._frame.settled[key] = settled
            known = isinstance(settled, Const)
            self._tests[key] = bool(settled.value) if known else self.value(settled, instance)
        return self._tests[key]

    def _name_values(self, instance: Instance) -> list[Statement]:
        """Declarations of the values that the block computes once and uses several times.

        The indices that lanes look up are among them.
        """
        block = instance.block
        key = (block.name, instance.lane is not None)
        if key not in self._shared:
            indices = map(index_of, lookups(instance, self._frame.registers))
            self._shared[key] = [*shared_values(block.value), *indices]
        self._values = {}
        made: list[Statement] = []
        for node in self._shared[key]:
            value = self.value(node, instance)
            name = Name(self._frame.names.fresh("value"), node.dtype, value.lanes)
            made.append(Declare(name, value))
            self._values[node] = name
        return made

    def start_value(self, instance: Instance) -> Value | None:
        """The literal that an instance sets a register to; None if it does not."""
        block = instance.block
        plain = block.reducer is None and block.guard is None and isinstance(block.value, Const)
        if not plain or not self._frame.registers.get(block.buffer):
            return None
        lanes = instance.lane[1] if instance.lane else 1
        key = (block.name, lanes)
        if key not in self._starts:
            self._starts[key] = self._assigned(instance, lanes)
        return self._starts[key]

    def target(self, instance: Instance) -> Name:
        """The register that an instance sets. Raises: CodegenError if it sets none."""
        block = instance.block
        address = self._addresses.of(block.buffer, block.indices, instance)
        target = None if address is None else self._register(address)
        if target is None:
            raise CodegenError(f"{block.name}: its stores are not adjacent")
        return target

    def _assigned(self, instance: Instance, lanes: int) -> Value:
        """What a block without a reducer stores."""
        value, dtype = self.value(instance.block.value, instance), instance.block.value.dtype
        if dtype == BOOL and lanes == 1:
            one, zero = Literal(True, BOOL), Literal(False, BOOL)
            value = Operation("choose", (value, one, zero), BOOL, value.lanes)
        return _splat(value, dtype, lanes)

    def _updated(self, instance: Instance, old: Value, lanes: int) -> Value:
        block, value = instance.block, instance.block.value
        if block.reducer is None:
            return self._assigned(instance, lanes)
        if block.reducer == "sum" and _is_product(value) and value.dtype == FLOAT32:
            assert isinstance(value, Binary)
            a, b = (self._wide(e, instance, lanes) for e in (value.a, value.b))
            return Operation("fma", (a, b, old), FLOAT32, lanes)
        if entry := called(value):
            words = (self._wide(word, instance, lanes) for word in value.children)
            return Operation(entry.name, (*words, old), value.dtype, lanes)
        return self._combined(block, old, _exact(value, self._wide(value, instance, lanes)), lanes)

    def _combined(self, block: Block, a: Value, b: Value, lanes: int) -> Value:
        """Two values of a reduction as one."""
        assert block.reducer is not None
        return Operation(_REDUCER[block.reducer], (a, b), block.value.dtype, lanes)

    def _across_lanes(
        self, instance: Instance, old: Value, lanes: int, made: list[Statement]
    ) -> Value:
        """The lanes of the value combined by halves, and with `old`; `made` gets the halves."""
        block, dtype = instance.block, instance.block.value.dtype
        value = self._wide(block.value, instance, lanes)
        while lanes > 1:
            name = Name(self._frame.names.fresh("lanes"), dtype, lanes)
            made.append(Declare(name, value))
            lanes //= 2
            low, high = (Operation(half, (name,), dtype, lanes) for half in ("low", "high"))
            value = self._combined(block, low, high, lanes)
        return self._combined(block, old, value, 1)

    # -- reads ---------------------------------------------------------------------------------

    def certain_reads(self, instance: Instance, written: set[Buffer]) -> list[Address | None]:
        """Addresses of reads that happen whenever the instance runs and see no store beside it.

        None for a read whose lanes are not adjacent, see `scattered_reads`.
        """
        of = self._addresses.of
        found = self._certain_loads(instance.block, written)
        return [of(load.buffer, load.indices, instance) for load in found]

    def scattered_reads(self, instance: Instance, written: set[Buffer]) -> Iterator[Address]:
        """Addresses of the lanes of certain reads whose lanes are not adjacent."""
        if instance.lane is None:
            return
        var, lanes = instance.lane
        whole = self.certain_reads(instance, written)
        for load, address in zip(self._certain_loads(instance.block, written), whole, strict=True):
            if address is None and not is_lookup(load, var, self._frame.registers):
                for i in range(lanes):
                    one = Instance(instance.block, {**instance.env, var.name: i}, None)
                    read = self._addresses.of(load.buffer, load.indices, one)
                    if read is not None:
                        yield read

    def _certain_loads(self, block: Block, written: set[Buffer]) -> list[Load]:
        if block.name not in self._certain:
            self._certain[block.name] = [
                load
                for load in certain_loads(block.value)
                if not any(
                    inner.buffer in written or inner.buffer in self._frame.registers
                    for inner in loads(load)
                )
            ]
        return self._certain[block.name]

    def load(self, read: Address) -> Value:
        """What is read from memory."""
        return MemoryLoad(self._at(read), read.buffer.dtype.compute)

    def _at(self, address: Address) -> At:
        """The address in memory; vectors are accessed whole where that helps the target."""
        whole = self._frame.groups.aligned_vectors and address.lanes > 1 and address.aligned
        aligned = whole and address.buffer.scope in ("global", "constant", "local")
        return At(
            self._frame.memory(address.buffer), address.base, address.offset, address.lanes, aligned
        )

    def _register(self, read: Address) -> Name | None:
        """The register that a read or write goes to; None for memory."""
        lanes = self._frame.registers.get(read.buffer, 0)
        if not lanes:
            return None
        if read.base or read.lanes != lanes or read.offset % lanes:
            raise CodegenError(f"{read.buffer}: [{read.base} + {read.offset}] is not a register")
        return self._frame.register(read.buffer, read.offset // lanes)

    # -- expressions ---------------------------------------------------------------------------

    def value(self, expr: Expr, instance: Instance) -> Value:
        """The value of an expression.

        Raises: CodegenError for one that has none in a kernel.
        """
        if self._values and expr in self._values:
            return self._values[expr]
        match expr:
            case Const(value, dtype):
                return Literal(value, dtype)
            case Load():
                return self._load(expr, instance)
            case Var():
                return self._integer(expr, instance)
            case Binary() if expr.dtype == INT32 and not loads(expr):
                return self._integer(expr, instance)
            case Binary():
                return self._binary(expr, instance)
            case Select():
                return self._select(expr, instance)
            case Cast():
                return self._cast(expr, instance)
            case Call() if expr.function == EITHER:
                return self._either(expr, instance)
            case Call() if called(expr):
                words = self._alike(expr.args, instance)
                zero = _splat(Literal(0, INT32), expr.dtype, words[0].lanes)
                return Operation(expr.function, (*words, zero), expr.dtype, zero.lanes)
            case Call():
                return self._function(expr.function, expr.args, expr.dtype, instance)
            case _:
                raise CodegenError(f"cannot print {type(expr).__name__}")

    def _either(self, call: Call, instance: Instance) -> Value:
        """A choice between two values that are both there, by the numbers of lanes if need be."""
        condition, *values = call.args
        bound = None if instance.lane is None else lane_bound(condition, instance.lane[0])
        if instance.lane is None or bound is None:
            test = self.value(condition, instance)
        else:
            lanes = instance.lane[1]
            numbers = tuple(Literal(i, INT32) for i in range(lanes))
            least = _splat(self.value(bound, instance), INT32, lanes)
            test = Operation("le", (least, Operation("vector", numbers, INT32, lanes)), BOOL, lanes)
        a, b = self._alike(values, instance, test.lanes)
        name = "select" if test.lanes > 1 else "choose"
        return Operation(name, (test, a, b), call.dtype, a.lanes)

    def _cast(self, cast: Cast, instance: Instance) -> Value:
        value = self.value(cast.value, instance)
        if cast.value.dtype == BOOL and value.lanes > 1:
            value = Operation("bitand", (value, Literal(1, INT32)), INT32, value.lanes)
        if cast.dtype == BOOL:
            return Operation("ne", (value, Literal(0, INT32)), BOOL, value.lanes)
        if cast.dtype == FLOAT32 and (field := _bits_of(value)) is not None:
            return Operation("float_of_bits", field, FLOAT32, value.lanes)
        return Operation("convert", (value,), cast.dtype, value.lanes)

    def _wide(self, expr: Expr, instance: Instance, lanes: int) -> Value:
        return _splat(self.value(expr, instance), expr.dtype, lanes)

    def _alike(self, exprs: Sequence[Expr], instance: Instance, least: int = 1) -> list[Value]:
        """Values of as many lanes as the widest has, at least so many."""
        values = [self.value(e, instance) for e in exprs]
        lanes = max(least, *(v.lanes for v in values))
        return [_splat(v, e.dtype, lanes) for e, v in zip(exprs, values, strict=True)]

    def _function(
        self, name: str, exprs: Sequence[Expr], dtype: DType, instance: Instance
    ) -> Value:
        values = self._alike(exprs, instance)
        exact = tuple(_exact(e, v) for e, v in zip(exprs, values, strict=True))
        return Operation(name, exact, dtype, values[0].lanes)

    def _load(self, load: Load, instance: Instance) -> Value:
        lane = instance.lane and instance.lane[0]
        if len(loads(load)) > 1 and is_lookup(load, lane, self._frame.registers):
            indices = self.value(index_of(load), instance)
            return looked_up(load, self._frame.memory(load.buffer), indices)
        read = self._addresses.of(load.buffer, load.indices, instance)
        if read is not None:
            value = self._register(read) or self.named.get(read)
            if value is None:
                lane = self.lanes.get(read)
                value = lane.value if lane else self.load(read)
            return value
        assert instance.lane is not None
        var, lanes = instance.lane
        envs = ({**instance.env, var.name: i} for i in range(lanes))
        ones = [Instance(instance.block, env, None) for env in envs]
        addresses = [self._addresses.of(load.buffer, load.indices, one) for one in ones]
        parts = [self.lanes[p] for p in addresses if p in self.lanes]
        if len(parts) == lanes and (value := gathers.shuffled(parts, load.dtype)):
            return value
        values = tuple(self._load(load, one) for one in ones)
        return Operation("vector", values, load.dtype, lanes)

    def _binary(self, expr: Binary, instance: Instance) -> Value:
        if expr.op in ("min", "max", "pow"):
            return self._function(expr.op, (expr.a, expr.b), expr.dtype, instance)
        left, right = self.value(expr.a, instance), self.value(expr.b, instance)
        lanes = max(left.lanes, right.lanes)
        if expr.op in ("eq", "ne") and expr.a.dtype == BOOL and left.lanes != right.lanes:
            # what is true is 1 alone, and -1 in each lane of a vector
            left, right = (
                Operation("neg", (v,), BOOL) if v.lanes == 1 else v for v in (left, right)
            )
        exact = expr.dtype.is_unsigned or expr.op in ("truncdiv", "truncmod")
        op = _TRUNCATING.get(expr.op, expr.op) if exact else expr.op
        value = Operation(op, (left, right), expr.dtype, lanes)
        return Operation("wrap", (value,), expr.dtype) if expr.dtype.is_narrow else value

    def _select(self, expr: Select, instance: Instance) -> Value:
        """A selection; what the ranges of the loops prove of a test over indices is left out."""
        test = self._choice(expr.condition, instance)
        if isinstance(test, bool):
            return self.value(expr.then if test else expr.otherwise, instance)
        a, b = self._alike((expr.then, expr.otherwise), instance, test.lanes)
        name = "select" if test.lanes > 1 else "choose"
        return Operation(name, (test, a, b), expr.dtype, a.lanes)

    def _choice(self, condition: Expr, instance: Instance) -> Value | bool:
        """The test of a selection, or whether it always or never holds."""
        lane = instance.lane and instance.lane[0]
        if loads(condition) or lane in variables(condition):
            return self.value(condition, instance)
        every = conjuncts(condition)
        terms = [term for term in every if not self._implied(term, instance)]
        open_ = (not isinstance(self._test(term, instance), bool) for term in terms)
        if len(terms) == len(every) and all(open_):
            return self.value(condition, instance)
        tests = self.condition(terms, instance)
        return Operation("all", tests, BOOL) if tests else tests is not None

    def _implied(self, term: Expr, instance: Instance) -> bool:
        """Whether the block's guard keeps it to where the term holds: by tails of tiles."""
        guards = [t for t in conjuncts(instance.block.guard) if size_variables(t)]
        if not guards or not size_variables(term):
            return False
        env = {Var(name): const(i) for name, i in instance.env.items()}
        own = substitute(term, env)
        return any(follows(own, substitute(guard, env)) for guard in guards)

    def _integer(self, expr: Expr, instance: Instance) -> Value:
        """An integer expression without reads, with its parts hoisted."""
        terms = polynomial(simplify(expr, self._addresses.ranges(instance)))
        terms = self._addresses.resolve(terms, instance)
        return self._sum(terms)

    def _sum(self, terms: Polynomial) -> Value:
        offset = terms.pop((), 0)
        if not terms:
            return Literal(offset, INT32)
        base = self._frame.hoist(terms, "i")
        kind = sum_type([*terms.items(), ((), offset)], self._frame.ranges)
        if kind == INT64:
            base = Operation("long", (base,), kind)
        return Operation("add", (base, Literal(offset, INT32)), kind) if offset else base

    def integer(self, expr: Expr) -> Value:
        """A division, minimum, selection or read that an address needs, over hoisted parts."""
        match expr:
            case Binary(op, a, b) if op in ("min", "max"):
                left, right = self._part(a), self._part(b)
                kind = INT32
                if INT64 in {integer_type(part, self._frame.ranges) for part in (a, b)}:
                    kind = INT64
                    left, right = (Operation("long", (v,), kind) for v in (left, right))
                return Operation(op, (left, right), kind)
            case Binary("floordiv" | "mod" as op, a, b):
                low = bounds(a, self._frame.ranges)
                positive = low is not None and low.low >= 0
                op = _TRUNCATING[op] if positive else op
                return Operation(op, (self._part(a), self._part(b)), INT32)
            case Binary("truncdiv" | "truncmod" as op, a, b):
                return Operation(_TRUNCATING[op], (self._part(a), self._part(b)), INT32)
            case Binary(op, a, b) if op in COMPARISONS | BITWISE:
                return Operation(op, (self._part(a), self._part(b)), expr.dtype)
            case _:
                return self.value(expr, Instance(_NOWHERE, {}, None))

    def _part(self, expr: Expr) -> Value:
        if expr.dtype == BOOL:
            return self.integer(expr)
        return self._sum(polynomial(expr))


def copied_ahead(statement: Statement, *, near: bool = False) -> Statement:
    """A store of what lies elsewhere, or of zeros by a test, as a copy that is waited for later;
    other statements as they are."""
    match statement:
        case Store(to, MemoryLoad(at)) if _copies(to, at):
            return CopyAhead(to, at, near=near)
        case Store(to, Operation("choose", (test, MemoryLoad(at), zero))) if _copies(to, at):
            known = _is_zero(zero) and test.lanes == 1
            return CopyAhead(to, at, test, near) if known else statement
        case _:
            return statement


def _copies(to: At, at: At) -> bool:
    """Whether so many aligned bytes go to local memory as an instruction copies."""
    count = to.lanes * to.memory.dtype.itemsize
    alike = to.memory.dtype == at.memory.dtype and at.memory.scope in ("global", "constant")
    whole = (to.aligned and at.aligned) or to.lanes == 1
    return alike and whole and to.lanes == at.lanes and count in COPIED_BYTES


def _is_zero(value: Value) -> bool:
    match value:
        case Literal(number):
            return number == 0
        case Operation("splat", (inner,)):
            return _is_zero(inner)
        case _:
            return False


_REDUCER = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "bitand": "bitand"}
"""Reducer -> the operation that combines two of its values."""
_TRUNCATING = {"floordiv": "div", "mod": "rem", "truncdiv": "div", "truncmod": "rem"}
"""What rounds toward zero, which is the same for all of them where nothing is negative."""


def _splat(value: Value, dtype: DType, lanes: int) -> Value:
    """The value, in every lane if it is a scalar."""
    if value.lanes >= lanes:
        return value
    if dtype == BOOL:
        return Operation("splat", (Operation("neg", (value,), BOOL),), INT32, lanes)
    return Operation("splat", (value,), dtype, lanes)


def _exact(expr: Expr, value: Value) -> Value:
    """The value as an argument of a function that is chosen by its arguments' types."""
    plain = not expr.dtype.is_narrow or isinstance(expr, Load | Cast)
    return value if plain else Operation("wrap", (value,), expr.dtype, value.lanes)


_NOWHERE = Block("address", Buffer("address", ()), (), const(0))


def _is_product(expr: Expr) -> bool:
    return isinstance(expr, Binary) and expr.op == "mul"


def _bits_of(value: Value) -> tuple[Value, Value, Value] | None:
    """The words, shift and mask of a value of at most a byte that words hold; None for others."""
    match value:
        case Operation(
            "bitand", (Operation("shr", (words, Literal() as shift)), Literal() as mask)
        ):
            known = words.dtype == INT32 and 0 < mask.value <= _BYTE
            return (words, shift, mask) if known else None
        case _:
            return None
