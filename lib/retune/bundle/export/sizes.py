"""The part of an exported program's header that is about sizes: their ranges, and what follows.

Read `size_lines`. Where a network has no sizes, the header has nothing of it, and network.c what is
meant by that.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from retune.bundle.plan import NetworkPlan, Segment
from retune.bundle.runtime.executor import launchable_segments
from retune.bundle.runtime.placement import Placement
from retune.bundle.runtime.rows import StepRows
from retune.codegen.network.extents import extent_text, variable
from retune.codegen.source import three
from retune.core.dims import Condition, is_fixed
from retune.core.dtypes import DType
from retune.ops.indexing import INDEX_TYPES


def size_parameters(plan: NetworkPlan) -> str:
    """The parameters that `network_run` has for the sizes."""
    return "".join(f"int {variable(each.size.name)}, " for each in plan.sizes)


def segments_by_variant(
    plan: NetworkPlan, rows: StepRows | None
) -> list[tuple[list[Segment], list[Segment]]]:
    """What runs each variant: segments of launches, and those of persistent kernels."""
    return [
        (
            launchable_segments(plan, plan.segments(v.first, v.end)),
            launchable_segments(plan, rows.segments_of(v.first, v.end)) if rows else [],
        )
        for v in plan.alternatives
    ]


def size_lines(plan: NetworkPlan, placement: Placement, rows: StepRows | None) -> Iterator[str]:
    """Macros, tables and functions for a network with sizes; nothing for one without."""
    if not plan.sizes:
        return
    names = [variable(each.size.name) for each in plan.sizes]
    yield f"#define SIZES {len(names)}"
    yield f"#define SIZE_PARAMETERS {size_parameters(plan)}"
    yield f"#define SIZE_ARGUMENTS {', '.join(names)}"
    yield f"#define VARIANTS {len(plan.alternatives)}"
    yield f"#define CORNERS {len(plan.corners)}"
    yield ""
    yield from _tables(plan, placement, rows)
    yield from _choice(plan)
    yield from _extents(plan)
    yield from _times(plan, rows)


def stated_lines(plan: NetworkPlan) -> Iterator[str]:
    """A table and a function for inputs whose values are stated; nothing where none are."""
    if not plan.values:
        return
    rows: list[tuple[int, int, int, int]] = []
    for name, elements in plan.values.items():
        width = DType(plan.buffer(name).dtype).itemsize
        rows += (
            (plan.inputs.index(name), n * width, width, element)
            for n, element in enumerate(elements)
        )
    yield f"#define STATED {len(rows)}"
    yield "/* An element of an input that has to be what state_elements says: where it lies. */"
    yield "struct stated {\n  int input;\n  size_t offset, bytes;\n};"
    yield ""
    yield from table("struct stated stated[STATED]", [row[:-1] for row in rows])
    elements = [f"elements[{n}] = {extent_text(row[-1])};" for n, row in enumerate(rows)]
    declared = "void state_elements(const int *values, long long *elements)"
    yield from function(declared, plan, elements, "(void)values;")


def index_lines(plan: NetworkPlan) -> Iterator[str]:
    """A table and a function for inputs that are indices; nothing where none are."""
    kinds = {name: DType(plan.buffer(name).dtype) for name in plan.indices}
    rows = [name for name, kind in kinds.items() if kind in INDEX_TYPES]
    if not rows:
        return
    yield f"#define INDEXED {len(rows)}"
    yield "/* An input of indices: bytes of an element. */"
    yield "struct indexed {\n  int input;\n  size_t bytes;\n};"
    yield ""
    indexed = [(plan.inputs.index(name), kinds[name].itemsize) for name in rows]
    yield from table("struct indexed indexed[INDEXED]", indexed)
    yield "/* The extents of which they are indices. */"
    extents = [f"extents[{n}] = {extent_text(plan.indices[x])};" for n, x in enumerate(rows)]
    declared = "void index_extents(const int *values, long long *extents)"
    yield from function(declared, plan, extents, "(void)values;")


def _tables(plan: NetworkPlan, placement: Placement, rows: StepRows | None) -> Iterator[str]:
    yield "/* Its range, and where it lies with the inputs and outputs. */"
    yield "struct size {\n  const char *name;\n  int least, most, step;\n  size_t offset;\n};"
    yield ""
    sizes = [(each.size, placement.memory[each.buffer].offset) for each in plan.sizes]
    ranges = [(f'"{s.name}"', s.least, s.most, s.step, offset) for s, offset in sizes]
    yield from table("struct size sizes[SIZES]", ranges)
    yield "/* Its segments: from the first to before the last one; then those of workers. */"
    yield "struct variant {\n  int first, last, resident, resident_last;\n};"
    yield ""
    found = segments_by_variant(plan, rows)
    ends = [[0, *accumulate(len(pair[side]) for pair in found)] for side in range(2)]
    pairs = zip(*map(pairwise, ends), strict=True)
    yield from table("struct variant variants[VARIANTS]", [(*a, *b) for a, b in pairs])
    yield "/* Sizes at the ends of their ranges, for each variant; the largest ones last. */"
    corners = [[values[each.size.name] for each in plan.sizes] for values in plan.corners]
    yield from table("int corners[CORNERS][SIZES]", corners)


def _choice(plan: NetworkPlan) -> Iterator[str]:
    """The decision list."""
    yield "/* The number of the variant for these sizes; -1 if there is none. */"
    tests = [" && ".join(map(_condition, v.conditions)) or "1" for v in plan.alternatives]
    lines = [f"if ({test}) return {number};" for number, test in enumerate(tests)]
    yield from function("int choose_variant(const int *values)", plan, [*lines, "return -1;"])


def _condition(condition: Condition) -> str:
    sign = "<" if condition.relation == "lt" else "=="
    return f"{'' if condition.holds else '!'}(({extent_text(condition.dim)}) {sign} 0)"


def table(declared: str, rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """A table in C."""
    yield f"static const {declared} = {{"
    yield from (f"    {{{', '.join(map(str, row))}}}," for row in rows)
    yield from ["};", ""]


def function(
    declared: str, plan: NetworkPlan, lines: Iterable[str], unused: str = ""
) -> Iterator[str]:
    """A function in C of all sizes' `values`, which are variables of their names in its lines.

    `unused` is a statement that reads arguments, where these lines may not.
    """
    yield f"static {declared} {{"
    for number, each in enumerate(plan.sizes):
        yield f"  const long {variable(each.size.name)} = values[{number}];"
    yield "".join(f"  (void){variable(each.size.name)};" for each in plan.sizes)
    yield from (f"  {line}" for line in [*([unused] if unused else []), *lines])
    yield from ["}", ""]


def _extents(plan: NetworkPlan) -> Iterator[str]:
    values = [plan.buffer(name) for name in (*plan.inputs, *plan.outputs)]
    yield "/* Bytes of all inputs, then of all outputs. */"
    sizes = [f"bytes[{n}] = (size_t)({extent_text(e.bytes)});" for n, e in enumerate(values)]
    yield from function("void count_bytes(const int *values, size_t *bytes)", plan, sizes)
    yield "/* Over which range each step runs. */"
    items = [
        f"global[{number}][{axis}] = (size_t)({extent_text(extent)});"
        for number, step in enumerate(plan.launches)
        for axis, extent in enumerate(three(step.global_size))
        if not is_fixed(extent)
    ]
    declared = "void count_items(const int *values, size_t (*global)[3])"
    yield from function(declared, plan, items, "(void)global;")
    yield "#ifndef WITHOUT_MAIN"
    yield "#include <stdio.h>"
    yield ""
    yield "/* The shape of an input, or of an output, as numpy writes it. */"
    shapes = [
        f"if (number == {number}) {_shape_line(plan.type_of(entry.name).shape)}"
        for number, entry in enumerate(values)
    ]
    declared = "void write_shape(int number, const int *values, char *text, size_t room)"
    *lines, _ = function(declared, plan, shapes)
    yield from [*lines, "#endif", ""]


def _times(plan: NetworkPlan, rows: StepRows | None) -> Iterator[str]:
    """What segments of loops over a batch have as their numbers of times."""
    found = segments_by_variant(plan, rows)
    sides = ([s for pair in found for s in pair[side]] for side in range(2))
    lines = [
        f"{name}[{number}] = (int)({extent_text(segment.times)});"
        for name, segments in zip(("queued", "resident"), sides, strict=True)
        for number, segment in enumerate(segments)
        if not is_fixed(segment.times)
    ]
    yield "/* How often segments run, and those of workers, where that depends on sizes. */"
    declared = "void count_times(const int *values, int *queued, int *resident)"
    yield from function(declared, plan, lines, "(void)queued, (void)resident;")


def _shape_line(shape: Sequence[int]) -> str:
    comma = "," if len(shape) == 1 else ""
    form = ", ".join("%ld" for _ in shape)
    given = "".join(f", (long)({extent_text(extent)})" for extent in shape)
    return f'snprintf(text, room, "({form}{comma})"{given});'
