"""The kernel around the statement at hand: what has which name there, and where sums are computed.

Integers are computed in the outermost scope that can: before loops, not in them.

Every index is a sum. Its terms are added up scope by scope, each as soon as its variables are
known, and each partial sum has one name for all indices that begin with it:

    for i in range(4):                 for i in range(4):
      for j in range(8):                 let x_at = i*64
        y[j] += x[i*64 + j*2 + 1]   ->   for j in range(8):
        z[j] += x[i*64 + j*2]              let x_at_1 = x_at + j*2
                                           y[j] += x[x_at_1 + 1]
                                           z[j] += x[x_at_1]

It happens while loops are expanded: most accesses of an unrolled tile differ in a constant, and a
pass over the finished statements would have to find the sums again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from retune.codegen.kernel import (
    Declare,
    Literal,
    Memory,
    Name,
    Operation,
    Statement,
    Value,
    tile_type,
)
from retune.codegen.names import Identifiers, identifier
from retune.codegen.target import Groups
from retune.codegen.widths import integer_type, sum_type
from retune.core.dtypes import INT32, INT64, DType
from retune.ir.expr import Buffer, Expr, SizeVar, Var, loads, variables
from retune.ir.flat import FlatIndices
from retune.ir.simplify import Monomial, Polynomial, Range


@dataclass(slots=True)
class Scope:
    """A level of loops or tests: the variables that it declares and its statements so far."""

    variables: set[Var]
    statements: list[Statement] = field(default_factory=list[Statement])
    names: dict[object, Value] = field(default_factory=dict[object, Value])
    """Hoisted values by their content."""
    fetched: set[object] = field(default_factory=set[object])
    """Addresses of reads that were looked at for rows to fetch."""


@dataclass(slots=True, kw_only=True, eq=False)
class Frame:
    """What expressions know of the kernel around them."""

    groups: Groups
    """How its work-groups run."""
    names: Identifiers
    integer: Callable[[Expr], Value]
    """The value of a division, minimum or the like, over hoisted parts."""
    flat: FlatIndices
    """The indices of its accesses, as polynomials."""
    registers: Mapping[Buffer, int] = field(default_factory=dict[Buffer, int])
    """Lanes of each register or private buffer; 0 for an array."""
    images: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Which constants are images, and of how many texels and rows."""
    ranges: dict[Var, Range] = field(default_factory=dict[Var, Range])
    """Of the loop variables met so far."""
    settled: dict[object, Expr] = field(default_factory=dict[object, Expr])
    """Tests under the ranges of their variables, by term, unrolled variables and lanes: each
    version of a loop asks for them."""
    scopes: list[Scope] = field(default_factory=lambda: [Scope(set())])
    """Those around the statement at hand, from the outermost."""
    sizes: dict[str, Name] = field(default_factory=dict[str, Name])
    """Those that it needs, by their names."""
    _texts: dict[Monomial, str] = field(default_factory=dict[Monomial, str])
    _parts: dict[tuple[str, str, int], Name] = field(
        default_factory=dict[tuple[str, str, int], Name]
    )
    _memory: dict[tuple[str, str, str], Memory] = field(
        default_factory=dict[tuple[str, str, str], Memory]
    )

    def variable(self, var: Var) -> Name:
        """The name of a loop variable, or of a size, which the kernel then reads."""
        if not isinstance(var, SizeVar):
            return Name(self.names.of(var.name), INT32)
        known = self.sizes.get(var.name)
        if known is None:
            known = self.sizes[var.name] = Name(self.names.fresh(identifier(var.name)), INT32)
        return known

    def register(self, buffer: Buffer, part: int) -> Name:
        """One of the registers of a buffer."""
        key = (buffer.name, buffer.dtype, part)
        known = self._parts.get(key)
        if known is None:
            name = self.names.of(buffer.name, part)
            known = self._parts[key] = Name(name, buffer.dtype.compute, self.registers[buffer])
        return known

    def memory(self, buffer: Buffer) -> Memory:
        """A buffer that lies in memory."""
        key = (buffer.name, buffer.dtype, buffer.scope)  # words of an array go by its name
        known = self._memory.get(key)
        if known is None:
            known = self._memory[key] = self._memory_of(buffer)
        return known

    def _memory_of(self, buffer: Buffer) -> Memory:
        dtype = buffer.dtype.compute if buffer.scope == "private" else buffer.dtype
        if buffer.scope in ("local", "private") or tile_type(dtype):  # others touch its elements
            dtype = dtype.element
        image = self.images.get(buffer.name) if buffer.scope == "constant" else None
        return Memory(self.names.of(buffer.name), dtype, buffer.scope, image)

    def hoist(self, terms: Polynomial, stem: str) -> Value:
        """A sum without constant, each of whose terms is added in the outermost scope that can.

        Terms that are read from memory stay where they are used: only there they may be read.
        """
        by_level: dict[int, list[tuple[Monomial, int]]] = {}
        read: list[Value] = []
        for monomial, coefficient in sorted(terms.items(), key=self._order):
            if any(loads(atom) for atom in monomial):
                read.append(self._term(monomial, coefficient))
                continue
            level = max(self._level(atom) for atom in monomial)
            by_level.setdefault(level, []).append((monomial, coefficient))
        ordered = [term for level in sorted(by_level) for term in by_level[level]]
        kind = sum_type(ordered, self.ranges)
        partial: Value | None = None
        for level in sorted(by_level):
            known = self.scopes[level].names
            key = (partial, tuple(by_level[level]))
            if key not in known:
                pieces = [partial] if partial else []
                pieces += [self._term(m, c, kind) for m, c in by_level[level]]
                value = pieces[0] if len(pieces) == 1 else Operation("sum", tuple(pieces), kind)
                named = isinstance(value, Name)
                known[key] = value if named else self._name(level, f"{stem}_at", kind, value)
            partial = known[key]
        if partial is not None and not read:
            return partial
        return Operation("sum", tuple([partial, *read] if partial else read), INT32)

    def _order(self, term: tuple[Monomial, int]) -> str:
        """The text of its monomial: sums are the same in every run."""
        monomial, _ = term
        if monomial not in self._texts:
            self._texts[monomial] = str(monomial)
        return self._texts[monomial]

    def _name(self, level: int, stem: str, kind: DType, value: Value) -> Name:
        name = Name(self.names.fresh(stem), kind)
        self.scopes[level].statements.append(Declare(name, value))
        return name

    def _term(self, monomial: Monomial, coefficient: int, kind: DType = INT32) -> Value:
        """The product in a sum of that type: an int64 is one from its first factor on."""
        factors = [self._atom(atom) for atom in monomial]
        if kind == INT64:
            factors[0] = Operation("long", (factors[0],), kind)
        if coefficient != 1:
            factors.append(Literal(coefficient, INT32))
        return factors[0] if len(factors) == 1 else Operation("product", tuple(factors), kind)

    def _atom(self, expr: Expr) -> Value:
        """The name of a variable, or of a hoisted division, minimum or the like."""
        if isinstance(expr, Var):
            return self.variable(expr)
        if loads(expr):
            return self.integer(expr)
        level = self._level(expr)
        known = self.scopes[level].names
        if expr not in known:
            kind = integer_type(expr, self.ranges)
            known[expr] = self._name(level, "t", kind, self.integer(expr))
        return known[expr]

    def _level(self, expr: Expr) -> int:
        """Index of the innermost scope that declares a variable of the expression."""
        used = variables(expr)
        for level in range(len(self.scopes) - 1, 0, -1):
            if not used.isdisjoint(self.scopes[level].variables):
                return level
        return 0
