"""The header of an exported program: what the network is, as declarations and tables in C.

Read `header_text`. It is deterministic: the same plan gives the same text.
"""

from collections.abc import Iterator, Sequence
from math import prod

from retune import __version__
from retune.bundle.export.sizes import (
    index_lines,
    segments_by_variant,
    size_lines,
    size_parameters,
    stated_lines,
)
from retune.bundle.export.states import session_lines, state_lines
from retune.bundle.plan import Form, NetworkPlan, Segment
from retune.bundle.runtime.placement import AFTER, Placement
from retune.bundle.runtime.rows import StepRows
from retune.codegen.network.persistent import comment
from retune.codegen.options import CHANNELS
from retune.codegen.source import KernelLaunch, ProgramBuffer, three
from retune.core.dims import most
from retune.core.dtypes import numpy_dtype
from retune.device.opencl import declarations
from retune.device.opencl.permissions import asking_implementations

MARK = "/* A network that retune exported."
"""What the header begins with: a folder that has one may be replaced."""

_IMAGE_BASE = AFTER + 1
"""Where an image lies, instead of an allocation."""
_FORMS: dict[Form, str] = {
    "persistent": "PERSISTENT",
    "inline": "ONE_THREAD",
    "queued": "QUEUED",
}


def header_text(
    plan: NetworkPlan,
    placement: Placement,
    rows: StepRows | None,
    peak_bytes: int,
    kernel_bytes: int,
) -> str:
    """The text of network.h for the plan, whose values lie as the placement says.

    Its persistent kernel has these rows, if it has one.
    """
    found = segments_by_variant(plan, rows)
    segments, resident = ([s for pair in found for s in pair[side]] for side in range(2))
    lines = [
        *_interface(plan),
        "#ifdef NETWORK_TABLES /* what network.c is told of it */",
        "",
        *_constants(plan, peak_bytes, kernel_bytes),
        f"#define SEGMENTS {len(segments)}",
        f"#define RESIDENT_SEGMENTS {len(resident)}",
        f"#define ROWS {len(rows.steps) if rows else 0}",
        "",
        *_types(),
        *_bases(placement),
        *_values("network_inputs", plan.inputs, plan, placement),
        *_values("network_outputs", plan.outputs, plan, placement),
        *_images(plan),
        *_arguments(plan, placement),
        *_steps(plan),
        *_segments("segments", segments),
        *_segments("resident_segments", resident),
        *size_lines(plan, placement, rows),
        *stated_lines(plan),
        *index_lines(plan),
        *state_lines(plan),
        "#endif",
        "#endif",
        "",
    ]
    return "\n".join(lines)


def _interface(plan: NetworkPlan) -> Iterator[str]:
    device = plan.device
    yield f"{MARK} retune {__version__}"
    yield f"   name    {_remark(plan.name)}"
    yield f"   model   {_remark(plan.model_key)}"
    yield f"   device  {_remark(device.model)}, {_remark(device.driver)}, {_remark(device.opencl)}"
    for role, names in (("input", plan.inputs), ("output", plan.outputs)):
        for number, name in enumerate(names):
            entry = plan.buffer(name)
            shape = "x".join(map(str, plan.type_of(name).shape)) or "scalar"
            yield f"   {role:7} {number}: {_remark(name)}, {entry.dtype}, {shape}"
    for each in plan.sizes:
        axis = "" if each.axis is None else f"axis {each.axis} of "
        yield f"   size    {each.size}: {axis}{_remark(each.input)}"
    for name, elements in plan.values.items():
        yield f"   value   {_remark(name)}: {', '.join(map(str, elements))}"
    yield "*/"
    yield from (line.format(sizes=size_parameters(plan)) for line in _DECLARATIONS.splitlines())
    yield from session_lines(plan)


_DECLARATIONS = """\
#ifndef RETUNE_NETWORK_H
#define RETUNE_NETWORK_H

struct network;

/* The network, ready to run, from a folder with kernels.cl and weights.bin. The device is a number
   or a part of a name, or NULL for the kind that it was compiled for. NULL if that fails. */
struct network *network_open(const char *folder, const char *device);

/* Runs it: a pointer for each input and for each output, in the order above, to as many bytes as
   the value has, in C order. 0, or -1 if that fails. Not for two threads at once. */
int network_run(struct network *network, {sizes}const void *const *inputs, void *const *outputs);

/* Gives back what it holds; NULL is allowed. */
void network_close(struct network *network);

/* After a failure one sentence that says what is wrong. */
const char *network_problem(void);
"""


def _constants(plan: NetworkPlan, peak_bytes: int, kernel_bytes: int) -> Iterator[str]:
    numbers = {
        "NETWORK_IS_FOR_CPU": int(plan.device.device_class == "cpu"),
        "NETWORK_IS_SINGLE_ITEM": int(plan.single_item),
        "NEEDS_MATRIX_REGISTERS": int(not plan.intrinsics.isdisjoint(asking_implementations())),
        "KERNEL_BYTES": kernel_bytes,
        "PEAK_BYTES": f"{peak_bytes}UL",
        "LARGEST_WORK_GROUP": max((prod(step.local_size) for step in plan.launches), default=1),
        "INPUTS": len(plan.inputs),
        "OUTPUTS": len(plan.outputs),
        "STEPS": len(plan.launches),
        "IMAGES": len(images_of(plan)),
        "ARGUMENTS": sum(len(step.args) for step in plan.launches),
        "MOST_ARGUMENTS": max((len(step.args) for step in plan.launches), default=1),
    }
    texts = {
        "NETWORK_NAME": plan.name,
        "NETWORK_DEVICE": plan.device.model,
        "BUILD_OPTIONS": " ".join(plan.options),
        "INSTRUCTIONS": ", ".join(sorted(plan.intrinsics)),
        "VECTORS_FOR_DRIVER": declarations.DRIVER,
    }
    yield "enum form { PERSISTENT, ONE_THREAD, QUEUED };"
    yield f"#define NETWORK_FORM {_FORMS[plan.form]}"
    for name, string in texts.items():
        yield f"#define {name} {_quoted(string)}"
    for name, number in numbers.items():
        yield f"#define {name} {number}"
    yield ""


def _types() -> Iterator[str]:
    yield from """\
#include <stddef.h>

/* Bytes of an allocation: 0 temporaries, 1 weights, 2 inputs and outputs, 3 states in place, 4
   others, 5 what these are after a run. Of base 6 an image, whose number is the offset. */
struct place {
  size_t base, offset, bytes;
};

/* Weights as texels of four floats. */
struct image {
  size_t row, rows;
};

/* Its element type and shape are as numpy writes them. */
struct value {
  const char *name, *type, *shape;
  size_t bytes;
  struct place place;
};

/* A kernel over a range; its arguments are places from `first` on. */
struct step {
  const char *kernel;
  int first, arguments;
  size_t global[3], local[3];
};

/* Steps from `first` to before `last`, so many times over. A persistent kernel has segments of its
   own, of the rows in it. */
struct segment {
  int first, last, times;
};
""".splitlines()
    yield ""


def _bases(placement: Placement) -> Iterator[str]:
    sizes = ", ".join(map(str, placement.base_bytes))
    if placement.state_bytes:
        yield f"#define BASES {len(placement.base_bytes)}"
    yield f"static const size_t base_bytes[{len(placement.base_bytes)}] = {{{sizes}}};"
    yield ""


def _values(
    table: str, names: Sequence[str], plan: NetworkPlan, placement: Placement
) -> Iterator[str]:
    rows: list[str] = []
    for name in names:
        entry = plan.buffer(name)
        kind, shape = _quoted(numpy_dtype(entry.dtype).str), _quoted(str(plan.type_of(name).shape))
        place = _place(name, placement)
        rows.append(f"{{{_quoted(name)}, {kind}, {shape}, {entry.most_bytes}, {place}}}")
    yield from _table(f"struct value {table}", rows, '{"", "", "", 0, {0, 0, 0}}')


def images_of(plan: NetworkPlan) -> list[ProgramBuffer]:
    """The weights that are images, in the order of their numbers."""
    return [entry for entry in plan.buffers if entry.image]


def _images(plan: NetworkPlan) -> Iterator[str]:
    images = images_of(plan)
    rows = [f"{{{e.image}, {e.elements // (CHANNELS * e.image)}}}" for e in images]
    yield from _table("struct image images", rows, "{1, 1}", [entry.name for entry in images])


def _arguments(plan: NetworkPlan, placement: Placement) -> Iterator[str]:
    images = {e.name: f"{{{_IMAGE_BASE}, {n}, 0}}" for n, e in enumerate(images_of(plan))}
    names = [name for step in plan.launches for name in step.args]
    rows = [images[name] if name in images else _place(name, placement) for name in names]
    notes = [name for step in plan.launches for name in step.args]
    yield from _table("struct place places_of_arguments", rows, "{0, 0, 0}", notes)


def _steps(plan: NetworkPlan) -> Iterator[str]:
    rows: list[str] = []
    first = 0
    for step in plan.launches:
        ranges = f"{_range(step.global_size)}, {_range(step.local_size)}"
        rows.append(f"{{{_quoted(step.kernel)}, {first}, {len(step.args)}, {ranges}}}")
        first += len(step.args)
    notes = [_work(step) for step in plan.launches]
    empty = '{"", 0, 0, {1, 1, 1}, {1, 1, 1}}'
    yield from _table("struct step steps", rows, empty, notes)


def _segments(table: str, segments: Sequence[Segment]) -> Iterator[str]:
    rows = [f"{{{s.first}, {s.end}, {most(s.times)}}}" for s in segments]
    yield from _table(f"struct segment {table}", rows, "{0, 0, 0}")


def _work(step: KernelLaunch) -> str:
    return f"{step.label}: {step.flops} operations"


def _table(
    name: str, rows: Sequence[str], empty: str, notes: Sequence[str] | None = None
) -> Iterator[str]:
    """C has no tables without rows: one that needs none has one that nobody reads."""
    yield f"static const {name}[] = {{"
    for number, row in enumerate(rows or [empty]):
        note = f" /* {_remark(notes[number])} */" if notes and rows else ""
        yield f"    {row},{note}"
    yield "};"
    yield ""


def _place(name: str, placement: Placement) -> str:
    found = placement.memory[name]
    return f"{{{found.base}, {found.offset}, {max(1, found.bytes)}}}"


def _range(sizes: Sequence[int]) -> str:
    return f"{{{', '.join(str(most(size)) for size in three(sizes))}}}"


def _remark(text: str) -> str:
    """The text as a comment of C may hold it."""
    return comment(text).replace("*/", "* /").replace("/*", "/ *")


def _quoted(text: str) -> str:
    """The text as a literal of C, whatever is in it."""
    plain = {ord(c) for c in _PLAIN}
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'


_PLAIN = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 !#$%&'()*+,-./:;<=>@[]^_{|}~"
)
"""What stands for itself; a question mark may begin a trigraph."""
