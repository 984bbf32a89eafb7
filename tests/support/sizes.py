"""Programs with sizes: lowered once, and run at several values of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retune.codegen.lower import finished, lower
from retune.codegen.source import GIVEN, ProgramSource
from retune.codegen.target import Target
from retune.core.dims import Condition, Size, SizeValues, assuming, dim_of
from retune.core.dtypes import FLOAT32, TensorType
from retune.core.target import DeviceSpec
from retune.device.opencl.runtime import BuiltProgram, Device
from retune.ir.expr import Buffer, as_expr, fixed_sizes, maximum
from retune.ir.merge import merge_axes
from retune.ir.stmt import Program, Seq, Stmt, from_dag, map_accesses, map_exprs
from retune.ir.te import Dag, at_sizes, compute, concat, placeholder, reduce_axis
from retune.ir.verify import verify
from retune.schedule.space import Space
from retune.targets.devices import target_of
from tests.support.dags import (
    batched_product,
    byte_product,
    conv2d,
    dense,
    depthwise,
    elementwise,
    flipped,
    integers,
    interwoven,
    joined,
    neighbours,
    padded_squares,
    pool,
    reduction,
    softmax,
    standardised,
    total,
    transpose,
)
from tests.support.items import run_items
from tests.support.oracle import (
    Arrays,
    assert_close,
    inputs_for,
    poisoned,
    reference,
    seldom_optimised,
    unoptimised,
)

MARGIN = 64
"""Elements behind each buffer that no kernel may write."""

Rules = Callable[[Program, DeviceSpec], Space]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A tensor expression with sizes, and kernels for it."""

    dag: Dag
    sources: Mapping[str, ProgramSource]
    """By sketch and decisions."""
    conditions: tuple[Condition, ...]

    @property
    def noted(self) -> list[str]:
        """The conditions as text, in order."""
        return sorted(map(str, self.conditions))

    def serves(self, values: SizeValues) -> bool:
        """Whether the kernels are for these sizes."""
        return all(condition.at(values) for condition in self.conditions)

    def sample(self, count: int, rng: np.random.Generator | None = None) -> "Lowered":
        """The same with so many of the kernels."""
        names = list(self.sources)
        chosen = (rng or np.random.default_rng(0)).permutation(len(names))[:count]
        return replace(self, sources={names[i]: self.sources[names[i]] for i in chosen})

    def shortest(self) -> "Lowered":
        """The same with the kernels of least text: others write the same statements more often."""
        name = min(self.sources, key=lambda name: len(self.sources[name].text))
        return replace(self, sources={name: self.sources[name]})


def lowered(
    make: Callable[[], Dag],
    rules: Rules,
    spec: DeviceSpec,
    at: SizeValues,
    *,
    each: int = 1,
    rng: np.random.Generator | None = None,
    target: Target | None = None,
) -> Lowered:
    """What rules make of it for a device: `each` candidates of each sketch, lowered once."""
    rng = rng or np.random.default_rng(0)
    with assuming(at) as assumed:
        dag = make()
        sources: dict[str, ProgramSource] = {}
        for sketch in rules(from_dag(dag), spec).sketches:
            for row in sketch.sample(each, rng):
                name, program = f"{sketch.name} {sketch.decided(row)}", sketch.instantiate(row)
                verify(program)
                source = lower(program, target or target_of(spec))
                gpu = spec.device_class == "gpu"
                sources[name] = unoptimised(source) if gpu else seldom_optimised(source)
    return Lowered(dag, sources, assumed.conditions)


def assert_right_at(
    device: Device, made: Lowered, every: Sequence[SizeValues], seed: int = 0
) -> None:
    """All kernels, built once, give what numpy says at these sizes, and write nothing else."""
    cases = [(values, at_sizes(made.dag, values)) for values in every]
    inputs = [inputs_for(dag, seed) for _, dag in cases]
    wanted = [reference(dag, given) for (_, dag), given in zip(cases, inputs, strict=True)]
    for name, source in made.sources.items():
        built = device.build(source.text, options=source.options)
        for (values, dag), given, expected in zip(cases, inputs, wanted, strict=True):
            assert made.serves(values), f"{values} do not meet {made.noted}"
            context = f"{name} at {values}\n{source.text}"
            assert_close(_outputs(device, source, built, given, values, dag), expected, context)


def _outputs(
    device: Device,
    source: ProgramSource,
    built: BuiltProgram,
    inputs: Mapping[str, np.ndarray],
    values: SizeValues,
    dag: Dag,
) -> Arrays:
    """The outputs at these sizes, with an error where a kernel writes past the end of a buffer."""
    at, given = source.at(values), dict(inputs)
    given |= {size: np.array([values[size]], np.int32) for size in source.sizes}
    memory = {}
    for spec in at.buffers:
        packing = source.packing(spec.name)
        if spec.role in GIVEN:
            arrays = [given[name] for name in packing.sources]
            data = (packing.pack.apply(*arrays) if packing.pack else arrays[0]).reshape(-1)
            assert data.size == spec.elements, f"{spec.name}: {data.size}, not {spec.elements}"
        else:
            data = poisoned(spec.elements, spec.dtype)
        margin = [] if spec.image else [poisoned(MARGIN, spec.dtype)]
        memory[spec.name] = device.upload(np.concatenate([data, *margin]), spec.image)
    device.enqueue(device.prepare_all(built, at.launches, memory))
    device.finish()
    for spec in [b for b in at.buffers if b.role in ("output", "temp")]:
        whole = TensorType((spec.elements + MARGIN,), spec.dtype)  # type: ignore[arg-type]
        behind = device.read(memory[spec.name], whole)[spec.elements :]
        same = np.array_equal(behind, poisoned(MARGIN, spec.dtype), equal_nan=spec.dtype[0] == "f")
        assert same, f"{spec.name}: written past its end at {values}\n{source.text}"
    types = {t.name: TensorType(t.shape, t.dtype) for t in dag.outputs}  # type: ignore[arg-type]
    return {name: device.read(memory[name], type) for name, type in types.items()}


# -- tensor expressions whose inner extents are sizes ----------------------------------------------


def tokens(b: int, s: int, c: int, f: int) -> Dag:
    """A dense layer over rows of tokens, with bias and rectifier."""
    x, w = placeholder("x", (b, s, c)), placeholder("w", (f, c), constant=True)
    bias, k = placeholder("bias", (f,), constant=True), reduce_axis("k", c)
    y = compute("y", (b, s, f), lambda n, t, j: x[n, t, k] * w[j, k], [x, w], reduce=(k,))
    shape = (b, s, f)
    return Dag(
        (compute("z", shape, lambda n, t, j: maximum(y[n, t, j] + bias[j], 0.0), [y, bias]),)
    )


def scores(b: int, s: int, d: int) -> Dag:
    """The products of all queries with all keys, scaled."""
    q, key, k = placeholder("q", (b, s, d)), placeholder("key", (b, d, s)), reduce_axis("k", d)
    shape = (b, s, s)
    y = compute("y", shape, lambda n, i, j: q[n, i, k] * key[n, k, j], [q, key], reduce=(k,))
    return Dag((compute("z", shape, lambda n, i, j: y[n, i, j] * 0.125, [y]),))


def context(b: int, s: int, d: int) -> Dag:
    """Values added up over tokens, by weights."""
    p, v, k = placeholder("p", (b, s, s)), placeholder("v", (b, s, d)), reduce_axis("k", s)
    body = lambda n, i, j: p[n, i, k] * v[n, k, j]  # noqa: E731
    return Dag((compute("y", (b, s, d), body, [p, v], reduce=(k,)),))


def mean_of_map(n: int, h: int, w: int, c: int) -> Dag:
    """The mean of each channel over a whole feature map."""
    x, a, b = placeholder("x", (n, h, w, c)), reduce_axis("a", h), reduce_axis("b", w)
    y = compute("y", (n, c), lambda i, j: x[i, a, b, j], [x], reduce=(a, b))
    return Dag((compute("z", (n, c), lambda i, j: y[i, j] / as_expr(h * w, FLOAT32), [y]),))


def heads(b: int, s: int, h: int, d: int) -> Dag:
    """Tokens and heads exchanged."""
    x = placeholder("x", (b, s, h, d))
    return Dag((compute("y", (b, h, s, d), lambda n, i, t, j: x[n, t, i, j] * 1.0, [x]),))


def joined_tokens(b: int, s: int, c: int) -> Dag:
    """Two rows of tokens one after the other, then a rectifier."""
    z = concat("both", [placeholder("x", (b, s, c)), placeholder("y", (b, s + 3, c))], 1)
    return Dag((compute("z", z.shape, lambda *i: maximum(z[i], 0.0), [z]),))


def cut(b: int, s: int, c: int) -> Dag:
    """The tokens from the third to the third last one."""
    x = placeholder("x", (b, s, c))
    return Dag((compute("z", (b, s - 4, c), lambda i, j, k: x[i, j + 2, k] * 2.0, [x]),))


def enlarged(n: int, h: int, w: int, c: int) -> Dag:
    """A feature map of twice the height and width."""
    x, shape = placeholder("x", (n, h, w, c)), (n, h * 2, w * 2, c)
    return Dag((compute("z", shape, lambda i, y, j, k: x[i, y // 2, j // 2, k], [x]),))


# -- random ones -----------------------------------------------------------------------------------

SIZES = (Size("few", 1, 9), Size("many", 2, 40), Size("side", 4, 21), Size("eights", 8, 64, 8))


def random_sizes(rng: np.random.Generator) -> dict[str, int]:
    """A value of each of `SIZES`, often one of the ends."""
    found: dict[str, int] = {}
    for size in SIZES:
        places = [0, len(size.values) - 1, int(rng.integers(len(size.values)))]
        found[size.name] = size.values[places[rng.integers(len(places))]]
    return found


def random_sized_dag(rng: np.random.Generator) -> Dag:
    """A tensor expression, some of whose extents are sizes, sums or products of them."""
    a, b, c, d = map(dim_of, SIZES)

    def any_of(*extents: int) -> int:
        return extents[rng.integers(len(extents))]

    def extent() -> int:
        return any_of(a, b, c, d, a * b, b + 3, 1, 5, 16, 4 * c)

    def fixed() -> int:
        return any_of(1, 3, 8, 16, 17, 32, 33)

    def side() -> int:
        return any_of(c, b + 3, 7, d)

    flag = bool(rng.integers(2))
    makers: list[Callable[[], Dag]] = [
        lambda: dense(extent(), fixed(), fixed(), epilogue=flag),
        lambda: conv2d(
            any_of(a, 1), side(), side(), any_of(2, 4, 16), any_of(8, 16, 20), any_of(1, 3),
            stride=any_of(1, 2), residual=flag,
        ),
        lambda: depthwise(any_of(a, 1), side(), side(), fixed(), stride=any_of(1, 2)),
        lambda: pool(any_of(a, 2), side(), side(), fixed(), any_of(2, 3), 2, average=flag),
        lambda: softmax(extent(), extent()),
        lambda: standardised(extent(), any_of(16, 64, 67)),
        lambda: elementwise(extent(), fixed()),
        lambda: transpose(extent(), extent(), any_of(b, 16, 5)),
        lambda: interwoven(any_of(a, 3), any_of(c, 4), any_of(b, 34)),
        lambda: joined(any_of(a, 3), extent(), extent()),
        lambda: reduction(extent(), extent(), "max" if flag else "sum", first=flag),
        lambda: total(any_of(a, 2), extent()),
        lambda: flipped(extent(), fixed()),
        lambda: byte_product(extent(), any_of(4, 16, 5), fixed()),
        lambda: integers(extent(), any_of(8, 20)),
        lambda: padded_squares(extent(), any_of(b, 32), 2, 1),
        lambda: neighbours(any_of(a, b), any_of(48, 16), 2, 2),
        lambda: batched_product(any_of(a, 2), any_of(b, 5, c), any_of(d, 16, b), any_of(c, d, 32)),
        lambda: tokens(any_of(a, 1), any_of(b, d), 16, any_of(24, 32)),
        lambda: heads(a, any_of(b, d), 4, 8),
        lambda: mean_of_map(any_of(a, 1), side(), side(), fixed()),
        lambda: enlarged(any_of(a, 1), side(), side(), fixed()),
    ]  # fmt: skip
    return makers[rng.integers(len(makers))]()


def assert_random_right(device: Device, rules: Rules, spec: DeviceSpec, seed: int) -> str:
    """A random expression, lowered once, is right at five sizes. Gives its conditions."""
    rng = np.random.default_rng(seed)
    state = rng.bit_generator.state

    def make() -> Dag:
        rng.bit_generator.state = state
        return random_sized_dag(rng)

    at = random_sizes(np.random.default_rng(seed + 1))
    merged = bool(seed % 2)
    made = lowered(lambda: merge_axes(make()) if merged else make(), rules, spec, at, rng=rng)
    made = made.sample(2, rng)
    every = [at, *(random_sizes(rng) for _ in range(40))]
    assert_right_at(device, made, [values for values in every if made.serves(values)][:5], seed)
    return ", ".join(made.noted)


def assert_items_right(rules: Rules, spec: DeviceSpec, seed: int) -> None:
    """Work-items that run what is printed for a random expression never race, at two sizes."""
    rng = np.random.default_rng(seed)
    at = random_sizes(np.random.default_rng(seed + 1))
    with assuming(at) as assumed:
        dag = random_sized_dag(rng)
        sketches = rules(from_dag(dag), spec).sketches
        sketch = sketches[rng.integers(len(sketches))]
        program = finished(sketch.instantiate(sketch.sample(1, rng)[0]))
    every = [at, *(random_sizes(rng) for _ in range(10))]
    met = [v for v in every if all(condition.at(v) for condition in assumed.conditions)]
    for values in met[:2]:
        fixed = at_sizes(dag, values)
        inputs = inputs_for(fixed, seed)
        found = run_items(program_at(program, values), inputs, seed)
        assert_close(found, reference(fixed, inputs), f"{sketch.name} at {values}\n{program}")


def program_at(program: Program, values: SizeValues) -> Program:
    """The program with these values of its sizes, which may be some of them."""

    def fixed(buffer: Buffer) -> Buffer:
        return replace(buffer, shape=tuple(fixed_sizes(n, values) for n in buffer.shape))

    def nest(root: Stmt) -> Stmt:
        root = map_exprs(root, lambda expr: fixed_sizes(expr, values))
        return map_accesses(root, lambda buffer, at: (fixed(buffer), at))

    return replace(
        program,
        body=Seq(tuple(map(nest, program.body.stmts))),
        inputs=tuple(map(fixed, program.inputs)),
        scratch=tuple(map(fixed, program.scratch)),
        outputs=tuple(map(fixed, program.outputs)),
    )
