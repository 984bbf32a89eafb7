"""The part of an exported program's header that is about sizes: their ranges, and what follows.

Read `size_lines`. Where a network has no sizes, the header has nothing of it, and network.c what is
meant by that.
"""

from collections.abc import Iterator, Sequence

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
    """What runs each variant: segments of launches, and those of workers that stay."""
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


def stated_lines(plan: NetworkPlan) -> Iterator[str]:
    """A table and a function for inputs whose values are stated; nothing where none are."""
    if not plan.values:
        return
    rows: list[tuple[int, int, int, int]] = []
    for name, elements in plan.values.items():
        width = DType(plan.buffer(name).dtype).itemsize
        places = enumerate(elements)
        rows += ((plan.inputs.index(name), n * width, width, element) for n, element in places)
    yield f"#define STATED {len(rows)}"
    yield "/* An element of an input that has to be what state_elements says: where it lies. */"
    yield "struct stated {\n  int input;\n  size_t offset, bytes;\n};"
    yield ""
    yield "static const struct stated stated[STATED] = {"
    yield from (f"    {{{number}, {offset}, {width}}}," for number, offset, width, _ in rows)
    yield "};"
    yield ""
    yield "static void state_elements(const int *values, long long *elements) {"
    yield from declared_sizes(plan)
    yield "  (void)values;"
    yield from (f"  elements[{n}] = {extent_text(row[-1])};" for n, row in enumerate(rows))
    yield from ["}", ""]


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
    yield "static const struct indexed indexed[INDEXED] = {"
    yield from (f"    {{{plan.inputs.index(name)}, {kinds[name].itemsize}}}," for name in rows)
    yield "};"
    yield ""
    yield "/* The extents of which they are indices. */"
    yield "static void index_extents(const int *values, long long *extents) {"
    yield from declared_sizes(plan)
    yield "  (void)values;"
    extents = enumerate(plan.indices[name] for name in rows)
    yield from (f"  extents[{n}] = {extent_text(extent)};" for n, extent in extents)
    yield from ["}", ""]


def _tables(plan: NetworkPlan, placement: Placement, rows: StepRows | None) -> Iterator[str]:
    yield "/* Its range, and where it lies with the inputs and outputs. */"
    yield "struct size {\n  const char *name;\n  int least, most, step;\n  size_t offset;\n};"
    yield ""
    yield "static const struct size sizes[SIZES] = {"
    for each in plan.sizes:
        size, offset = each.size, placement.places[each.buffer].offset
        yield f'    {{"{size.name}", {size.least}, {size.most}, {size.step}, {offset}}},'
    yield "};"
    yield ""
    yield "/* Its segments: from the first to before the last one; then those of workers. */"
    yield "struct variant {\n  int first, last, resident, resident_last;\n};"
    yield ""
    yield "static const struct variant variants[VARIANTS] = {"
    first, resident = 0, 0
    for queued, stay in segments_by_variant(plan, rows):
        row = (first, first + len(queued), resident, resident + len(stay))
        yield f"    {{{', '.join(map(str, row))}}},"
        first, resident = row[1], row[3]
    yield "};"
    yield ""
    yield "/* Sizes at the ends of their ranges, for each variant; the largest ones last. */"
    yield "static const int corners[CORNERS][SIZES] = {"
    for values in plan.corners:
        yield f"    {{{', '.join(str(values[each.size.name]) for each in plan.sizes)}}},"
    yield "};"
    yield ""


def _choice(plan: NetworkPlan) -> Iterator[str]:
    """The decision list."""
    yield "/* The number of the variant for these sizes; -1 if there is none. */"
    yield "static int choose_variant(const int *values) {"
    yield from declared_sizes(plan)
    for number, variant in enumerate(plan.alternatives):
        tests = " && ".join(map(_condition, variant.conditions)) or "1"
        yield f"  if ({tests}) return {number};"
    yield from ["  return -1;", "}", ""]


def _condition(condition: Condition) -> str:
    sign = "<" if condition.relation == "lt" else "=="
    return f"{'' if condition.holds else '!'}(({extent_text(condition.dim)}) {sign} 0)"


def declared_sizes(plan: NetworkPlan) -> Iterator[str]:
    """Each size as a variable of a function of all `values`."""
    for number, each in enumerate(plan.sizes):
        yield f"  const long {variable(each.size.name)} = values[{number}];"
    yield "".join(f"  (void){variable(each.size.name)};" for each in plan.sizes)


def _extents(plan: NetworkPlan) -> Iterator[str]:
    values = [plan.buffer(name) for name in (*plan.inputs, *plan.outputs)]
    yield "/* Bytes of all inputs, then of all outputs. */"
    yield "static void count_bytes(const int *values, size_t *bytes) {"
    yield from declared_sizes(plan)
    for number, entry in enumerate(values):
        yield f"  bytes[{number}] = (size_t)({extent_text(entry.bytes)});"
    yield from ["}", ""]
    yield "/* Over which range each step runs. */"
    yield "static void count_items(const int *values, size_t (*global)[3]) {"
    yield from declared_sizes(plan)
    yield "  (void)global;"
    for number, step in enumerate(plan.launches):
        for axis, extent in enumerate(three(step.global_size)):
            if not is_fixed(extent):
                yield f"  global[{number}][{axis}] = (size_t)({extent_text(extent)});"
    yield from ["}", ""]
    yield "#ifndef WITHOUT_MAIN"
    yield "#include <stdio.h>"
    yield ""
    yield "/* The shape of an input, or of an output, as numpy writes it. */"
    yield "static void write_shape(int number, const int *values, char *text, size_t room) {"
    yield from declared_sizes(plan)
    for number, entry in enumerate(values):
        yield f"  if (number == {number}) {_shape_line(plan.type_of(entry.name).shape)}"
    yield from ["}", "#endif", ""]


def _shape_line(shape: Sequence[int]) -> str:
    comma = "," if len(shape) == 1 else ""
    form = ", ".join("%ld" for _ in shape)
    given = "".join(f", (long)({extent_text(extent)})" for extent in shape)
    return f'snprintf(text, room, "({form}{comma})"{given});'
