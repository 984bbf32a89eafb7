"""The invariants of a network plan, one function each, and the list that checks them.

Each raises VerifyError: where, what is expected, what is there.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING

from retune.bundle.plan import (
    NetworkPlan,
    PlanHost,
    PlanLoop,
    broken_plan,
    made_by_hosts,
    used_by,
)
from retune.bundle.runtime.hazards import are_disjoint
from retune.bundle.runtime.inputs import InputCheck
from retune.bundle.states import outputs_of
from retune.codegen.options import unknown_options
from retune.codegen.source import GIVEN, KernelLaunch, ProgramBuffer
from retune.core.dims import always_equal, always_same, counts_of, dim_of, is_fixed, sizes_of
from retune.core.dtypes import DTYPES, INT32, UNKNOWN, DType, TensorType, numpy_dtype
from retune.core.errors import InputError, ModelError
from retune.device.remote.names import is_farm
from retune.ir.storage import Storage

if TYPE_CHECKING:
    from retune.frontend.host.step import HostModel
    from retune.targets.vta.step import OffloadedStep

_MOST = 1 << 62
"""Of anything that is counted."""
_MOST_TIMES = 1 << 31
"""That one launch runs in a run of the plan."""


def verify_plan(plan: NetworkPlan) -> None:
    """Holds after the call: the plan keeps every invariant of CHECKS. Raises: VerifyError.

    One whose extents depend on sizes those of WHOLE_CHECKS, and those others of CHECKS at the ends
    of the sizes' ranges, for each variant.
    """
    if not plan.sizes:
        for check in (check_names_unique, check_sizes, *CHECKS):
            check(plan)
        return
    for check in WHOLE_CHECKS:
        check(plan)
    others = [check for check in CHECKS if check not in WHOLE_CHECKS]
    for values in plan.corners:
        try:
            alone = plan.at(values)
        except ValueError as error:
            expected = "storages that hold their values for all sizes"
            raise broken_plan(plan, "aliases", expected, f"at {values} {error}") from error
        for check in others:
            check(alone)


def check_options(plan: NetworkPlan) -> None:
    """Compilers are asked for what is known to name no file."""
    if unknown := unknown_options(plan.options):
        raise broken_plan(plan, "options", "build options of codegen.target's list", unknown)


def check_device(plan: NetworkPlan) -> None:
    """It was tuned for a device of a machine: opening it by that name leads nowhere else."""
    if is_farm(plan.device.name):
        raise broken_plan(plan, "device", "a device of a machine", plan.device.name[:80])


def check_names_unique(plan: NetworkPlan) -> None:
    """No two buffers share a name."""
    seen: set[str] = set()
    for entry in plan.buffers:
        if entry.name in seen:
            raise broken_plan(plan, f"buffer {entry.name}", "one buffer of each name", "two")
        seen.add(entry.name)


def check_sizes(plan: NetworkPlan) -> None:
    """Each size is the extent of an input along an axis, or of what a host step makes before it is
    read, and has a buffer of its own."""
    buffers = {entry.name: entry for entry in plan.buffers}
    names = [each.size.name for each in plan.sizes]
    made = made_by_hosts(plan)
    if len({*names}) < len(names) or (plan.variants and not names):
        raise broken_plan(plan, "sizes", "one of each name, at least one for variants", str(names))
    for each in plan.sizes:
        where = f"size {each.size.name}"
        _check_known(plan, where, (each.buffer, each.input), buffers)
        held, read = buffers[each.buffer], buffers[each.input]
        if (held.role, DType(held.dtype), held.elements) != ("size", INT32, 1):
            got = f"{held.role} of {held.elements} {held.dtype}"
            raise broken_plan(plan, where, "a buffer of role size, of one int32", got)
        own = -1 if each.axis is None else dict(enumerate(read.shape)).get(each.axis, -1)
        is_fixed = each.size.least == each.size.most
        elements = sizes_of(plan.values.get(each.input, ()))
        stated = each.axis is None and (is_fixed or each.size in elements)
        stated = stated or always_equal(own, dim_of(each.size))
        if not stated or each.input not in (made if each.counted else plan.inputs):
            got = f"axis {each.axis} of {each.input}, {read.shape}"
            raise broken_plan(plan, where, "an axis of an input of this extent", got)
    held_by = sorted(each.buffer for each in plan.sizes)
    having = sorted(entry.name for entry in plan.buffers if entry.role == "size")
    if held_by != having:
        raise broken_plan(plan, "sizes", f"the buffers of role size: {having}", str(held_by))


def check_extents(plan: NetworkPlan) -> None:
    """Extents depend on sizes of the plan, and fit each other for all of them."""
    known = {each.size for each in plan.sizes}
    for where, extents in _extents(plan):
        if strange := sizes_of(extents) - known:
            raise broken_plan(plan, where, "sizes of the plan", ", ".join(map(str, strange)))
    shapes = {entry.shape for entry in plan.buffers if entry.role != "weight"}
    counts = {shape: prod(shape) for shape in shapes if UNKNOWN not in filter(is_fixed, shape)}
    for entry in plan.buffers:
        stated = entry.role != "weight" and entry.shape in counts
        if stated and not always_equal(counts[entry.shape], entry.elements):
            expected = f"{counts[entry.shape]} elements of shape {entry.shape}"
            raise broken_plan(plan, f"buffer {entry.name}", expected, str(entry.elements))
    for launch in plan.launches:
        pairs = zip(launch.global_size, launch.local_size, strict=False)
        if not all(n == 1 or (n > 1 and always_equal(g % n, 0)) for g, n in pairs):
            got = str((launch.global_size, launch.local_size))
            raise broken_plan(
                plan, _where(launch), "a global size that the local size divides", got
            )


def _extents(plan: NetworkPlan) -> Iterator[tuple[str, Iterable[int]]]:
    for entry in plan.buffers:
        yield f"buffer {entry.name}", (entry.elements, *entry.shape)
    for launch in plan.launches:
        yield _where(launch), (*launch.global_size, launch.flops, launch.bytes)
    for alias in plan.aliases:
        parts = alias.storage.parts if alias.storage else ()
        numbers = [n for p in parts for n in (p.divisor, p.extent, p.first, p.room)]
        yield f"alias {alias.value} of {alias.of}", numbers
    for name, elements in plan.values.items():
        yield f"values of {name}", elements
    for name, extent in plan.indices.items():
        yield f"indices {name}", [extent]
    for variant in plan.variants:
        yield f"variant {variant}", [condition.dim for condition in variant.conditions]


def check_values(plan: NetworkPlan) -> None:
    """Inputs whose elements are stated, or are indices, are integers, as many as are stated."""
    for name, elements in plan.values.items():
        where = f"values of {name}"
        if name not in plan.inputs:
            raise broken_plan(plan, where, "an input", "another name")
        entry = plan.buffer(name)
        if DType(entry.dtype).is_float or not always_equal(entry.elements, len(elements)):
            got = f"{entry.elements} of {entry.dtype}"
            raise broken_plan(plan, where, f"{len(elements)} integers", got)
    for name in plan.indices:
        if name not in plan.inputs or DType(plan.buffer(name).dtype).is_float:
            raise broken_plan(plan, f"indices {name}", "an input of integers", "another value")


def check_variants(plan: NetworkPlan) -> None:
    """Variants are the launches and host steps in order; loops lie within one."""
    launch, host = 0, 0
    for variant in plan.alternatives:
        where = f"variant {variant}"
        first, end = (variant.first, variant.first_host), (variant.end, variant.end_host)
        if first != (launch, host) or not (first[0] <= end[0] and first[1] <= end[1]):
            expected = f"launches from {launch} on and host steps from {host} on"
            raise broken_plan(plan, where, expected, f"{first} to {end}")
        launch, host = end
        hosts = plan.hosts[variant.first_host : variant.end_host]
        if any(not variant.first <= step.after <= variant.end for step in hosts):
            raise broken_plan(plan, where, "host steps among its launches", "others")
        if any(loop.first < variant.end < loop.end for loop in plan.loops):
            raise broken_plan(plan, where, "no loop with launches of others", "one")
    if (launch, host) != (len(plan.launches), len(plan.hosts)):
        raise broken_plan(plan, "variants", "all launches and host steps", "some")


def check_variant_buffers(plan: NetworkPlan) -> None:
    """A variant has as many outputs as the plan; each buffer is there for a variant."""
    names = {entry.name for entry in plan.buffers if entry.role == "output"} | {*plan.inputs}
    for variant in plan.variants:
        listed = {*variant.outputs}
        count = (len(listed), len(variant.outputs))
        if listed and (count != (len(plan.outputs),) * 2 or not listed <= names):
            expected = f"buffers of role output for {list(plan.outputs)}"
            raise broken_plan(plan, f"variant {variant}", expected, str(variant.outputs))
    used = {name for variant in plan.alternatives for name in used_by(plan, variant)}
    used.update(plan.outputs)
    roots = plan.roots  # who reads a whole may be the only one that reads its parts
    strays = [entry.name for entry in plan.buffers if roots[entry.name] not in used]
    if strays:
        raise broken_plan(plan, "buffers", "those that a variant uses", str(strays)[:80])


def check_sized_samples(plan: NetworkPlan) -> None:
    """Samples are for sizes of the plan."""
    if not plan.samples:
        return
    if sorted(plan.samples) != sorted(plan.inputs):
        raise broken_plan(plan, "samples", "some of each input", str([*plan.samples]))
    try:
        InputCheck(plan).sizes([plan.samples[name][0] for name in plan.inputs])
    except IndexError:
        raise broken_plan(plan, "samples", "some of each input", "none") from None
    except InputError as error:
        raise broken_plan(plan, "samples", "some of each input", str(error)) from error


def check_buffer_types(plan: NetworkPlan) -> None:
    """Each buffer has a known type, a positive size, and the elements of its shape.

    A weight is exempt from the last: packing may pad it. Inputs and outputs may have no elements:
    that is up to the model, and no launch reads or writes them. So may what host steps make.
    """
    made = {value for host in plan.hosts for value in host.outputs}
    for entry in plan.buffers:
        where = f"buffer {entry.name}"
        if entry.dtype not in DTYPES:
            raise broken_plan(plan, where, f"one of {', '.join(DTYPES)}", entry.dtype)
        if UNKNOWN in entry.shape:
            _check_unknown(plan, entry, made)
            continue
        if min(entry.shape, default=0) < 0:
            raise broken_plan(plan, where, "extents of at least 0", str(entry.shape)[:80])
        if entry.bytes >= _MOST:
            raise broken_plan(plan, where, f"less than {_MOST} bytes", str(entry.bytes)[:80])
        needed = entry.role in ("weight", "temp") and entry.name not in made and not plan.sizes
        if entry.elements < (1 if needed else 0):
            raise broken_plan(plan, where, "at least one element", str(entry.elements))
        if entry.role != "weight" and prod(entry.shape) != entry.elements:
            expected = f"{prod(entry.shape)} elements of shape {entry.shape}"
            raise broken_plan(plan, where, expected, str(entry.elements))


def _check_unknown(plan: NetworkPlan, entry: ProgramBuffer, made: Container[str]) -> None:
    """A value of unknown extents is an output that a host step makes, and no step reads."""
    where = f"buffer {entry.name}"
    if entry.role != "output" or entry.name not in made or entry.elements:
        expected = "known extents, or no elements of an output that a host step makes"
        raise broken_plan(plan, where, expected, f"{entry.elements} of shape {entry.shape}")
    read = [step for step in (*plan.launches, *plan.hosts) if entry.name in step.read]
    if read:
        raise broken_plan(plan, where, "known extents of what is read", f"{entry.shape}")


def check_images(plan: NetworkPlan) -> None:
    """What kernels read through an image is a weight of whole rows of texels, in memory of its own;
    the arguments that are images are those that the kernel takes as images."""
    images = {entry.name: entry for entry in plan.buffers if entry.image}
    shared = {name for alias in plan.aliases for name in (alias.value, alias.of)}
    for name, entry in images.items():
        from retune.codegen.passes.images import fits_image  # few bundles have images

        fits = fits_image(entry.elements, entry.dtype, entry.image)
        if entry.role != "weight" or name in shared or not fits:
            expected = f"a weight of float32 in whole rows of {entry.image} texels"
            got = f"{entry.role} of {entry.elements} {entry.dtype}"
            raise broken_plan(plan, f"image {name}", expected, got)
    for kernel, launch in plan.runs:
        wanted = kernel.images
        given = tuple(number for number, name in enumerate(launch.args) if name in images)
        if wanted != given:
            expected = f"images as arguments {list(wanted)}"
            raise broken_plan(plan, _where(launch), expected, str(list(given)))


def check_interface(plan: NetworkPlan) -> None:
    """`inputs` and `outputs` list exactly the buffers of these roles, each once; inputs that are
    handed through are outputs, too."""
    handed = {*plan.inputs} & {*plan.outputs}
    if len({*plan.outputs}) < len(plan.outputs):
        raise broken_plan(plan, "outputs", "each of them once", str(list(plan.outputs)))
    sides: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("input", plan.inputs),
        ("output", tuple(name for name in plan.outputs if name not in handed)),
    )
    for role, listed in sides:
        having = [entry.name for entry in plan.buffers if entry.role == role]
        if sorted(listed) != sorted(having):
            raise broken_plan(
                plan, f"{role}s", f"the buffers of role {role}: {having}", str(listed)
            )
    if not plan.outputs:
        raise broken_plan(plan, "outputs", "at least one", "none")


def check_states(plan: NetworkPlan) -> None:
    """A state is an input and an output of one type, each in one state; their memory is no other
    input's, and no other output's but by its own name. Those that grow are longer at the end."""
    if not plan.states:
        return
    roots, roles = plan.roots, plan.roles
    ends = {name: roots[name] for name in (*plan.inputs, *plan.outputs) if name in roots}
    for number, state in enumerate(plan.states):
        where = f"state {state}"
        known = state.input in plan.inputs and state.output in plan.outputs
        if not known or not {state.input, state.output} <= ends.keys():
            raise broken_plan(plan, where, "an input and an output of the plan", "other names")
        others = [s for n, s in enumerate(plan.states) if n != number]
        own = {ends[state.input], ends[state.output]}
        if any(own & {ends.get(other.input), ends.get(other.output)} for other in others):
            raise broken_plan(plan, where, "memory of its own", "that of another state")
        if any(ends.get(name) in own for name in plan.inputs if name != state.input):
            raise broken_plan(plan, where, "memory of its own", "that of another input")
        if roles.get(ends[state.output]) == "weight":
            raise broken_plan(plan, where, "an output that a step makes", "a constant")
        before, after = plan.buffer(state.input), plan.buffer(state.output)
        inner = slice(0 if state.axis is None else 1, None)
        same = always_same(before.shape[inner], after.shape[inner])
        if before.dtype != after.dtype or not same or len(before.shape) != len(after.shape):
            expected = f"{before.dtype}{before.shape}"
            raise broken_plan(plan, where, expected, f"{after.dtype}{after.shape}")
        grows = ends[state.input] == ends[state.output] and state.axis in range(len(before.shape))
        if state.axis is not None and not grows:
            expected = "an axis of its tensors, and one memory for both"
            raise broken_plan(plan, where, expected, str(state.axis))


def check_weights(plan: NetworkPlan) -> None:
    """Each weight buffer has one array of its type and size, and there are no others."""
    sizes = {entry.name: entry for entry in plan.buffers if entry.role == "weight"}
    if sizes.keys() != plan.weights.keys():
        strays = sorted(sizes.keys() ^ plan.weights.keys())
        raise broken_plan(
            plan, "weights", "one array for each weight buffer", f"mismatch at {strays}"
        )
    for name, entry in sizes.items():
        array = plan.weights[name]
        if array.dtype != numpy_dtype(entry.dtype) or array.size != entry.elements:
            expected = f"{entry.elements} elements of {entry.dtype}"
            raise broken_plan(plan, f"weight {name}", expected, f"{array.size} of {array.dtype}")


def check_aliases(plan: NetworkPlan) -> None:
    """An alias joins two buffers of one type and size; chains end; inputs and weights are roots."""
    buffers = {entry.name: entry for entry in plan.buffers}
    grown = _grown(plan)
    roles = ("temp", "input")  # of what does not grow, and of what does
    seen: set[str] = set()
    for alias in plan.aliases:
        where = f"alias {alias.value} of {alias.of}"
        _check_known(plan, where, (alias.value, alias.of), buffers)
        value, of = buffers[alias.value], buffers[alias.of]
        if alias.value in seen:
            raise broken_plan(plan, where, "one alias for each value", "a second one")
        seen.add(alias.value)
        grows = (alias.value, alias.of) in grown
        if value.role in GIVEN and not grows:
            raise broken_plan(plan, where, "a temp or output as the value", value.role)
        if alias.storage is not None:
            _check_storage(plan, where, value, of, alias.storage, roles[grows])
        elif (value.dtype, value.elements) != (of.dtype, of.elements):
            got = f"{value.elements} of {value.dtype}"
            raise broken_plan(plan, where, f"{of.elements} elements of {of.dtype}", got)
    plan.roots  # noqa: B018  raises where chains do not end


def _grown(plan: NetworkPlan) -> set[tuple[str, str]]:
    """Inputs and outputs that are states which grow, as the variants of the plan have them."""
    return {
        (state.input, name)
        for state in plan.states
        if state.axis is not None
        for name in outputs_of(plan, state.output)
    }


def _check_storage(
    plan: NetworkPlan,
    where: str,
    value: ProgramBuffer,
    of: ProgramBuffer,
    storage: Storage,
    role: str,
) -> None:
    """The value is a temporary, or an input that is a state.

    Its storage is of its shape, in all of what it lies in.

    Columns of a value are in rows as long as that value's.
    """
    width = (of.shape or (1,))[-1]
    fits = storage.shape == value.shape and storage.elements == of.elements
    fits = fits and (not storage.is_columns or storage.parts[-1].room == width)
    if role == "input":  # what was there before lies at the beginning
        fits = fits and all(always_equal(part.first, 0) for part in storage.parts)
    if value.role != role or value.dtype != of.dtype or not fits:
        expected = f"role {role}, in {of.elements} of {of.dtype}, columns in rows of {width}"
        got = f"{value.role} {value.shape} of {value.dtype}, {storage}"
        raise broken_plan(plan, where, expected, got)


def check_launch_arguments(plan: NetworkPlan) -> None:
    """Each launch names a known kernel, known buffers, and writes some of its arguments."""
    buffers = {entry.name: entry for entry in plan.buffers}
    kernels = {kernel.name for kernel in plan.kernels}
    for launch in plan.launches:
        where = _where(launch)
        if launch.kernel not in kernels:
            raise broken_plan(plan, where, "a kernel of the plan", launch.kernel)
        if not launch.writes:
            raise broken_plan(plan, where, "a kernel that writes an argument", "writes to none")
        _check_known(plan, where, launch.args, buffers)
        strays = [name for name in launch.writes if name not in launch.args]
        if strays:
            raise broken_plan(plan, where, "writes that are arguments", str(strays))


def check_launch_ranges(plan: NetworkPlan) -> None:
    """Each range is positive, or empty for some sizes, has one to three axes, and is divided by its
    work-group."""
    for launch in plan.launches:
        where, sizes = _where(launch), (launch.global_size, launch.local_size)
        if not 1 <= len(launch.global_size) <= 3 or len(launch.local_size) != len(
            launch.global_size
        ):
            raise broken_plan(plan, where, "1 to 3 axes, as many local as global", str(sizes))
        least = 0 if plan.sizes else 1  # there may be nothing to do for the least sizes
        if min(launch.global_size) < least or min(launch.local_size) < 1:
            raise broken_plan(plan, where, "positive ranges", str(sizes))
        if prod(launch.global_size) >= _MOST:
            raise broken_plan(plan, where, f"less than {_MOST} work-items", str(sizes))
        if not 0 <= launch.flops < _MOST or not 0 <= launch.bytes < _MOST:
            counts = f"{launch.flops} operations, {launch.bytes} bytes"
            raise broken_plan(plan, where, "counts of its work", counts)
        if any(g % n for g, n in zip(launch.global_size, launch.local_size, strict=True)):
            raise broken_plan(plan, where, "a global size that the local size divides", str(sizes))
        limit = plan.device.max_work_group
        if prod(launch.local_size) > limit:
            raise broken_plan(plan, where, f"at most {limit} work-items", str(launch.local_size))


def check_kernel_texts(plan: NetworkPlan) -> None:
    """Each kernel's text defines its entry point."""
    for kernel in plan.kernels:
        entry, text = kernel.name, kernel.text
        if f" {entry}(" in text:  # as it is printed; an expression takes a hundred times as long
            continue
        if not re.search(rf"\b{re.escape(entry)}\s*\(", text):
            expected = f"a text that defines {entry}"
            raise broken_plan(
                plan,
                f"kernel {entry}",
                expected,
                text.lstrip().partition("\n")[0][:60] or "an empty text",
            )


def check_writable(plan: NetworkPlan) -> None:
    """No launch writes an input, a weight or a size, nor memory that it also reads."""
    roots, roles = plan.roots, plan.roles
    spans = {a.value: a.storage.spans() for a in plan.aliases if a.storage is not None}
    for launch in plan.launches:
        for name in launch.writes:
            role = roles[roots[name]]
            if role in GIVEN:
                raise broken_plan(
                    plan, _where(launch), "writes to temps or outputs", f"{role} {name}"
                )
            same = (other for other in launch.read if roots[other] == roots[name])
            if any(not are_disjoint(spans.get(other, ()), spans.get(name, ())) for other in same):
                expected = "memory that is not read through another argument"
                raise broken_plan(plan, _where(launch), expected, f"a write to {name}")


def check_hosts(plan: NetworkPlan) -> None:
    """Each host step is a model of its own, in its turn, on known buffers of the model's types."""
    buffers = {entry.name: entry for entry in plan.buffers}
    last = 0
    for host in plan.hosts:
        where = _where(host)
        if not last <= host.after <= len(plan.launches):
            expected = f"a position from {last} to {len(plan.launches)}, after the steps before it"
            raise broken_plan(plan, where, expected, str(host.after))
        last = host.after
        _check_known(plan, where, (*host.read, *host.writes), buffers)
        try:
            step = host.opened
        except ModelError as error:
            raise broken_plan(plan, where, "a model that is a host step", str(error)) from error
        _check_host_types(plan, host, step)


def _check_host_types(plan: NetworkPlan, host: PlanHost, step: "HostModel | OffloadedStep") -> None:
    """What the step reads and makes is what its model takes and makes."""
    where = _where(host)
    sides = (("inputs", host.inputs, step.inputs), ("outputs", host.outputs, step.outputs))
    for side, names, own in sides:
        if len(names) != len(own) or (side == "inputs" and "" in names):
            raise broken_plan(plan, where, f"{len(own)} {side}: {', '.join(own)}", str(names))
    for name, dtype in zip(host.inputs, step.dtypes, strict=True):
        if dtype not in ("", plan.buffer(name).dtype):
            raise broken_plan(plan, where, f"input {name} of {dtype}", plan.buffer(name).dtype)
    for name, kind in zip(host.outputs, step.types, strict=True):
        entry = plan.buffer(name) if name else None
        if entry and not _is_made(kind, entry):
            raise broken_plan(
                plan, where, f"output {name} of {kind}", f"{entry.dtype}{entry.shape}"
            )


def _is_made(kind: TensorType, entry: ProgramBuffer) -> bool:
    """Whether a buffer may hold what a model makes; extents that this leaves open are any."""
    return (
        entry.dtype == kind.dtype
        and len(entry.shape) == len(kind.shape)
        and all(
            own in (UNKNOWN, extent) for own, extent in zip(kind.shape, entry.shape, strict=True)
        )
    )


def check_counts_found(plan: NetworkPlan) -> None:
    """A step that depends on a count comes after the host step that finds it."""
    found = {each.size: each for each in plan.sizes if each.counted}
    for variant in plan.alternatives if found else ():
        unmade = {each.input: each.size for each in plan.sizes if each.counted}
        for part in plan.parts_of(variant):
            for launch in plan.launches[part.first : part.end]:
                early = {each for each in unmade.values() if found[each].buffer in launch.args}
                early |= counts_of(launch.global_size) & {*unmade.values()}
                if early:
                    expected = f"{', '.join(s.name for s in early)} found by an earlier host step"
                    raise broken_plan(plan, _where(launch), expected, "a launch that depends on it")
            for host in part.hosts:
                for name in host.outputs:
                    unmade.pop(name, None)
        if unmade:
            expected = f"a host step that finds {', '.join(s.name for s in unmade.values())}"
            raise broken_plan(plan, f"variant {variant}", expected, "none")


def check_host_writes(plan: NetworkPlan) -> None:
    """What a host step makes is memory of its own that nothing else of its variant writes."""
    roots = plan.roots
    for variant in plan.alternatives:
        launches = plan.launches[variant.first : variant.end]
        written = {roots[name] for launch in launches for name in launch.writes}
        for host in plan.hosts[variant.first_host : variant.end_host]:
            for name in host.writes:
                role = plan.buffer(name).role
                if role in GIVEN or roots[name] != name:
                    expected = "writes to temps or outputs of their own memory"
                    got = f"{role} {name} in {roots[name]}"
                    raise broken_plan(plan, _where(host), expected, got)
                if name in written:
                    expected = f"nothing else that writes {name}"
                    raise broken_plan(plan, _where(host), expected, "two writers")
                written.add(name)


def check_samples(plan: NetworkPlan) -> None:
    """Samples are of the inputs, each has the same number of them, at least one."""
    if not plan.samples:
        return
    found = {name: (str(a.dtype), a.shape[1:]) for name, a in plan.samples.items()}
    wanted = {name: plan.type_of(name) for name in plan.inputs}
    stated = {name: (str(entry.dtype), entry.shape) for name, entry in wanted.items()}
    counts = {a.shape[:1] for a in plan.samples.values()}
    if found != stated or len(counts) != 1 or counts <= {(), (0,)}:
        expected = f"some of each input, along a first axis: {stated}"
        raise broken_plan(plan, "samples", expected, str(found))


def check_loops(plan: NetworkPlan) -> None:
    """Loops run launches between host steps; each lies in the one before it, or comes after it."""
    around = [PlanLoop(first=0, end=len(plan.launches), times=1)]
    for loop in plan.loops:
        while len(around) > 1 and around[-1].end <= loop.first:
            around.pop()
        last, where = around[-1], f"loop of launches {loop.first} to {loop.end}"
        if not last.first <= loop.first < loop.end <= last.end:
            expected = f"some of the launches {last.first} to {last.end}, after those before it"
            raise broken_plan(plan, where, expected, "others")
        if any(loop.first < host.after < loop.end for host in plan.hosts):
            raise broken_plan(plan, where, "no host step among them", "one")
        around.append(loop)
        if loop.times < 0 or prod(outer.times for outer in around) >= _MOST_TIMES:
            expected = f"0 times or more, and less than {_MOST_TIMES} with those around it"
            raise broken_plan(plan, where, expected, f"{loop.times} times")


def check_written_before_read(plan: NetworkPlan) -> None:
    """What a step reads, and every output, was written before (or is an input or a weight)."""
    roots, roles = plan.roots, plan.roles
    full = {root for root, role in roles.items() if role in GIVEN}
    full |= {roots[state.input] for state in plan.states}
    for step in plan.steps:
        for name in step.read:
            if roots[name] not in full:
                expected = f"{name} written by an earlier step"
                raise broken_plan(plan, _where(step), expected, "a read of it")
        full.update(roots[name] for name in step.writes)
    for name in plan.outputs:
        if roots[name] not in full and plan.buffer(name).elements:
            raise broken_plan(plan, f"output {name}", "a step that writes it", "none")


CHECKS: tuple[Callable[[NetworkPlan], None], ...] = (
    check_options,
    check_device,
    check_buffer_types,
    check_interface,
    check_states,
    check_samples,
    check_weights,
    check_aliases,
    check_launch_arguments,
    check_launch_ranges,
    check_kernel_texts,
    check_images,
    check_writable,
    check_hosts,
    check_host_writes,
    check_loops,
    check_written_before_read,
)
"""One invariant each, in an order where a check may rely on those before it."""

WHOLE_CHECKS: tuple[Callable[[NetworkPlan], None], ...] = (
    check_options,
    check_device,
    check_names_unique,
    check_states,
    check_sizes,
    check_extents,
    check_values,
    check_variants,
    check_variant_buffers,
    check_counts_found,
    check_weights,
    check_kernel_texts,
    check_sized_samples,
)
"""Those of a plan with sizes, of all of it."""


def _check_known(
    plan: NetworkPlan, where: str, names: Iterable[str], buffers: Mapping[str, ProgramBuffer]
) -> None:
    for name in names:
        if name not in buffers:
            raise broken_plan(plan, where, "names of buffers of the plan", name)


def _where(step: KernelLaunch | PlanHost) -> str:
    if isinstance(step, PlanHost):
        return f"host step {step.label}"
    return f"launch {step.label} ({step.kernel})"
