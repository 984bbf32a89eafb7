"""`export_c`: a bundle as a folder with a C program that runs it where there is no Python.

The program is `network.c`, which is the same for every network; what the network is stands in the
header that `header` writes. Beside them lie the kernels, with all that the forms of the plan need,
and the weights as they lie on the device. Nothing is built or run here.
"""

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np

from retune.bundle.export.header import MARK, header_text, images_of
from retune.bundle.memory import plan_memory
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.placement import WEIGHTS, Placement, lay_out, sizes_at
from retune.bundle.runtime.rows import StepRows, callees_of, step_rows
from retune.codegen.network.inline import inline_text
from retune.codegen.network.persistent import persistent_text
from retune.core.dtypes import Array
from retune.core.errors import InputError
from retune.core.files import check_replaces
from retune.core.replacing import whole_folder
from retune.device.opencl import vectors

SOURCE, HEADER, KERNELS, WEIGHTS_FILE = "network.c", "network.h", "kernels.cl", "weights.bin"

THREADS = "RETUNE_THREADS"
"""What the program says when it builds its kernels: how many threads the device has."""


def export_c(plan: NetworkPlan, folder: Path) -> Path:
    """`folder` holds the program, whole or not at all; one that was there is replaced.

    Raises: InputError if the plan has host steps, or outputs that lie elsewhere in some variants,
    or if something else lies there.
    """
    if any(variant.outputs for variant in plan.variants):
        raise InputError(
            f"bundle {plan.name}: expected outputs in the same memory for all sizes, got others in "
            "some variants, which a C program cannot have; export it for fewer sizes"
        )
    if plan.hosts:
        steps = "; ".join(f"{host.label} ({host.opened.title})" for host in plan.hosts)
        raise InputError(
            f"bundle {plan.name}: expected kernels alone, got host steps, which a C program does "
            f"not have: {steps}; run this bundle with Python"
        )
    check_replaces(folder, "an exported program", _is_program)
    memory = plan_memory(plan)
    placement = lay_out(plan, memory)
    rows = step_rows(plan, placement) if plan.launches and plan.single_item else None
    kernels = "\n".join(_kernel_parts(plan, placement, rows)).encode()
    texts = {
        SOURCE: _packaged(SOURCE),
        HEADER: header_text(plan, placement, rows, memory.peak_bytes, len(kernels)),
        "Makefile": _packaged("network.mk"),
    }
    with whole_folder(folder) as fresh:
        for name, text in texts.items():
            (fresh / name).write_text(text, encoding="utf-8")
        (fresh / KERNELS).write_bytes(kernels)
        _write_weights(plan, placement, fresh / WEIGHTS_FILE)
    return folder


def _packaged(name: str) -> str:
    return files("retune.bundle.export").joinpath(name).read_text(encoding="utf-8")


def _is_program(folder: Path) -> bool:
    try:
        return (folder / HEADER).read_text(encoding="utf-8").startswith(MARK)
    except (OSError, UnicodeDecodeError):
        return False


def _kernel_parts(plan: NetworkPlan, placement: Placement, rows: StepRows | None) -> Iterator[str]:
    """The kernels, each in a function of its own, and one that runs them all for each form."""
    text = plan.text
    yield from _vector_lines(text)
    yield text
    if rows is None:
        return
    callees, bases = callees_of(plan), len(placement.base_bytes)
    steps, sizes = rows.steps[: len(plan.launches)], sizes_at(plan, placement)
    yield "\n#ifdef RETUNE_PERSISTENT"
    yield rows.text
    yield persistent_text(rows.callees, rows.steps, bases, THREADS, sizes=sizes)
    yield "#endif"
    if plan.form == "inline":
        yield "\n#ifdef RETUNE_ONE_THREAD"
        yield inline_text(callees, steps, bases, sizes)
        yield "#endif"


def _vector_lines(text: str) -> Iterator[str]:
    """Loads and stores of vectors instead of PoCL's own, for the version that `vectors` is of."""
    words = vectors.words_of(text)
    used = words & vectors.NAMES
    if not used:
        return
    yield "// PoCL 3.0 takes the vectors of vload and vstore apart; these are one instruction each."
    yield "#ifdef RETUNE_VECTORS"
    for name in sorted(used):
        yield f"#undef {name}\n#define {name} retune_{name}"
    yield from vectors.definitions(words)
    yield "#endif\n"


def _write_weights(plan: NetworkPlan, placement: Placement, path: Path) -> None:
    """The bytes of the allocation that holds the weights, with zeros between them; then images."""
    with path.open("wb") as stream:
        stream.truncate(placement.base_bytes[WEIGHTS])
        for name, array in plan.weights.items():
            if name in placement.memory:
                stream.seek(placement.memory[name].offset)
                stream.write(_bytes(array))
        stream.seek(placement.base_bytes[WEIGHTS])
        for entry in images_of(plan):
            stream.write(_bytes(plan.weights[entry.name]))


def _bytes(array: Array) -> memoryview:
    """What lies in memory, in rows, without a copy: buffers have no types of `ml_dtypes`."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
