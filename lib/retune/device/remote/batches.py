"""Batches of candidates as data: what a client sends, what a board makes of it, and the rows back.

Read `pack_batch` and `unpack_batch`. Packed constants travel as arrays; so a program comes out of
the wire with the same key, and any Runner measures it as its own. What a board takes is limited by
numbers of its own: `Limits`.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from statistics import median

import numpy as np

from retune.codegen.options import ALLOWED_OPTIONS, unknown_options
from retune.codegen.passes.images import fits_image
from retune.codegen.source import (
    KernelLaunch,
    KernelText,
    Packing,
    ProgramBuffer,
    ProgramSource,
)
from retune.core.dtypes import DTYPES, numpy_dtype
from retune.core.schema import to_json
from retune.device.measure.vitals import Vitals
from retune.device.measure.workload import (
    MeasureOptions,
    Workload,
    check_fits,
    packed_weights,
)
from retune.device.remote.wire import (
    MessageParts,
    RefusedError,
    digest_of,
    group_of,
    grouped,
    pack_arrays,
    read_json,
    unpack_arrays,
)
from retune.records.schema import MAX_ERROR_CHARS, Measurement, failed
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.source import PackedSource, packed_source
from retune.targets.vta.template import KNOBS, ORDER, unmet
from retune.targets.vta.workload import Convolution

MEASURE = "measure"
"""Kind of the jobs that are batches."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_MOST_GOVERNOR_CHARS = 80
_SHOWN = 1e300
"""Whole numbers beyond are none that a float shows."""
_MOST_DIGITS = 20
_INPUT, _OUTPUT, _POSITION = "input/", "output/", "place/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a board takes at most, whatever the job says of itself."""

    candidates: int = 4096
    text_chars: int = 4 << 20
    """Of a kernel."""
    buffer_bytes: int = 8 << 30
    """All buffers of a program together."""
    deadline_s: float = 600.0
    """Of building, of running, and of the arithmetic that a program says it is, each."""
    repeats: int = 1000
    pause_s: float = 60.0
    spread_bytes: int = 8 << 30
    accelerator: VtaConfig | None = None
    """The board's, which takes packed layers and no kernels; None: it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PackedLayer:
    """What a PackedSource is made of."""

    work: Convolution
    decisions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """Kernels, or a layer for an accelerator."""

    kernels: tuple[KernelText, ...]
    launches: tuple[KernelLaunch, ...]
    buffers: tuple[ProgramBuffer, ...]
    options: tuple[str, ...] = ()
    packed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Weight -> name of the array that it holds; the others come from the workload."""
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Weight -> the task's arrays that it is made of, where that is not the one of its name."""
    layer: _PackedLayer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    workload: str
    """Key."""
    digest: str
    """Of the blob with its arrays."""
    rtol: float
    atol: float
    options: MeasureOptions
    programs: tuple[_Program, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    rows: tuple[Measurement, ...]
    vitals: Vitals


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPack:
    """A Pack that was applied where the program was made."""

    array: np.ndarray

    def apply(self, *arrays: np.ndarray) -> np.ndarray:  # noqa: ARG002  they are in it already
        """The array that came with the program."""
        return self.array


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedBatch:
    """A batch as a board has it; the workload's arrays may be known from before."""

    workload_key: str
    digest: str
    rtol: float
    atol: float
    options: MeasureOptions
    sources: tuple[ProgramSource, ...]

    def workload(self, blob: bytes) -> Workload:
        """The workload, of the blob with its arrays. Raises: RefusedError if it is none."""
        arrays = unpack_arrays(blob)
        outputs, positions = group_of(arrays, _OUTPUT), group_of(arrays, _POSITION)
        for name, found in positions.items():
            fits = name in outputs and found.shape == outputs[name].shape
            if not fits or found.dtype != np.int64 or found.min(initial=0) < 0:
                raise RefusedError(f"positions of {name[:80]!r}: expected one for each element")
        return Workload(
            key=self.workload_key,
            inputs=group_of(arrays, _INPUT),
            outputs=outputs,
            positions=positions,
            rtol=self.rtol,
            atol=self.atol,
        )


def pack_workload(workload: Workload) -> bytes:
    """The workload's arrays: the blob that its batches need."""
    inputs = grouped(workload.inputs, _INPUT)
    outputs = grouped(workload.outputs, _OUTPUT)
    positions = grouped(workload.positions, _POSITION)
    return pack_arrays({**inputs, **outputs, **positions})


def pack_batch(
    workload: Workload, digest: str, sources: Sequence[ProgramSource], options: MeasureOptions
) -> tuple[str, dict[str, np.ndarray]]:
    """Body of the job, and the arrays that it holds. `digest` is that of the workload's blob.

    Equal packed constants are one array. Raises: InputError for a candidate that does not fit the
    workload's arrays.
    """
    arrays: dict[str, np.ndarray] = {}
    programs: list[_Program] = []
    for source in sources:
        check_fits(workload, source)
        names: dict[str, str] = {}
        for name, array in packed_weights(workload, source).items():
            data = np.ascontiguousarray(array).tobytes()
            names[name] = digest_of(data + str(array.dtype).encode())
            arrays[names[name]] = array
        programs.append(
            _Program(
                kernels=source.kernels,
                launches=source.launches,
                buffers=source.buffers,
                options=source.options,
                packed=names,
                sources={name: packing.sources for name, packing in source.packings.items()},
                layer=_layer_of(source) if isinstance(source, PackedSource) else None,
            )
        )
    batch = _Batch(
        workload=workload.key,
        digest=digest,
        rtol=workload.rtol,
        atol=workload.atol,
        options=options,
        programs=tuple(programs),
    )
    return to_json(batch), arrays


def unpack_batch(body: str, parts: MessageParts, limits: Limits) -> ReceivedBatch:
    """The batch of that body, as far as it fits the limits. Raises: RefusedError."""
    batch = read_json(_Batch, body)
    check_options(batch.options, limits)
    for name in ("rtol", "atol"):
        if not (isfinite(getattr(batch, name)) and getattr(batch, name) >= 0):
            raise RefusedError(f"{name}: expected 0 or more, got {getattr(batch, name)}")
    _at_most("candidates", len(batch.programs), limits.candidates)
    sources = tuple(_source(program, parts.arrays, limits) for program in batch.programs)
    for source in sources:
        allowed_s = source.flops / (1e9 * batch.options.worst_gflops)
        _at_most("seconds for a program's arithmetic", allowed_s, limits.deadline_s)
    return ReceivedBatch(
        workload_key=batch.workload,
        digest=batch.digest,
        rtol=batch.rtol,
        atol=batch.atol,
        options=batch.options,
        sources=sources,
    )


def check_options(options: MeasureOptions, limits: Limits) -> None:
    """Raises: RefusedError if a job asks for more than a board gives."""
    for name in ("build_deadline_s", "run_deadline_s"):
        _at_most(name, getattr(options, name), limits.deadline_s)
    for name in ("number", "repeat", "disturbed_retries"):
        _at_most(name, getattr(options, name), limits.repeats)
    _at_most("cooldown_s", options.cooldown_s, limits.pause_s)
    _at_most("min_repeat_ms", options.min_repeat_ms, 1e3 * limits.pause_s)
    _at_most("deadline_factor", options.deadline_factor, limits.repeats)
    _at_most("spread_bytes", options.spread_bytes, limits.spread_bytes)
    _at_most("1 / worst_gflops", 1 / options.worst_gflops, limits.repeats)


def pack_rows(rows: Sequence[Measurement], vitals: Vitals) -> str:
    """Body of the answer. JSON has no infinity; the largest float says the same."""
    most = sys.float_info.max
    finite = (
        row if row.max_abs_err is None else replace(row, max_abs_err=min(row.max_abs_err, most))
        for row in rows
    )
    return to_json(_Rows(rows=tuple(finite), vitals=vitals))


def unpack_rows(body: str, instance: str, number: int) -> list[Measurement]:
    """So many rows, taken by the board of that name. Raises: RefusedError for anything else."""
    answer = read_json(_Rows, body)
    if len(answer.rows) != number:
        raise RefusedError(f"expected {number} rows from {instance}, got {len(answer.rows)}")
    return [_checked(row, instance, answer.vitals) for row in answer.rows]


def _checked(row: Measurement, instance: str, vitals: Vitals) -> Measurement:
    """The row as the board of that name took it; its median is taken here."""
    beside = [us for us in (row.reference_us, row.calm_us) if us is not None]
    times = (*row.run_times_us, *beside)
    if row.ok != bool(row.run_times_us) or not all(map(_is_time, times)):
        raise RefusedError(f"expected positive times of right candidates alone, got {row}")
    spent = (row.build_s, row.run_s, row.max_abs_err or 0.0)
    if not all(isfinite(value) and value >= 0 for value in spent):
        raise RefusedError(f"expected seconds and a deviation of 0 or more, got {row}")
    shown = (vitals.clock_mhz, vitals.temperature_c)
    if not all(value is None or isfinite(value) for value in shown):
        raise RefusedError(f"expected a clock and a temperature, got {vitals!r}")
    known = failed(row.status, row.error[: 2 * MAX_ERROR_CHARS]) if row.error else row
    return replace(
        row,
        error="" if row.ok else known.error,
        median_us=median(row.run_times_us) if row.ok else None,
        reference_us=row.reference_us if row.ok else None,
        calm_us=row.calm_us if row.ok else None,
        instance=instance,
        clock_mhz=vitals.clock_mhz,
        temperature_c=vitals.temperature_c,
        governor=vitals.governor[:_MOST_GOVERNOR_CHARS],
    )


def _is_time(us: float) -> bool:
    return isfinite(us) and us > 0


def _layer_of(source: PackedSource) -> _PackedLayer:
    decided = tuple((name, int(value)) for name, (value,) in source.decisions.items())
    return _PackedLayer(work=source.work, decisions=decided)


def _source(program: _Program, arrays: Mapping[str, np.ndarray], limits: Limits) -> ProgramSource:
    if limits.accelerator is None and program.layer is None:
        return _kernels_of(program, arrays, limits)
    if limits.accelerator is None or program.layer is None or program.kernels:
        wanted = "packed layers, for its accelerator" if limits.accelerator else "kernels"
        raise RefusedError(f"expected {wanted}, got a program of another kind")
    work, decisions = program.layer.work, dict(program.layer.decisions)
    tiles = {name: value for name, value in decisions.items() if name != ORDER}
    if tiles.keys() != set(KNOBS) or min(tiles.values()) < 1:
        raise RefusedError(f"layer: expected a number for each of {', '.join(KNOBS)}")
    if why := unmet(work, limits.accelerator, tiles):
        raise RefusedError(f"layer: expected tiles that fit the accelerator, got others: {why}")
    values = {name: (value,) for name, value in decisions.items()}
    return packed_source(work, values, limits.accelerator)


def _kernels_of(
    program: _Program, arrays: Mapping[str, np.ndarray], limits: Limits
) -> ProgramSource:
    if unknown := unknown_options(program.options):
        raise RefusedError(
            f"build options: expected some of {', '.join(sorted(ALLOWED_OPTIONS))}, got {unknown}"
        )
    names = [buffer.name for buffer in program.buffers]
    if not program.kernels or len(set(names)) != len(names):
        raise RefusedError("expected a program of kernels, and buffers with names of their own")
    kernels = {kernel.name: kernel for kernel in program.kernels}
    for kernel in program.kernels:
        _check_text(kernel, limits)
    for launch in program.launches:
        if launch.kernel not in kernels:
            raise RefusedError(
                f"kernel {launch.kernel[:80]!r}: expected a kernel of the program, got another name"
            )
        _check_launch(launch, frozenset(names))
        _check_images(kernels[launch.kernel], launch, program.buffers)
    for buffer in program.buffers:
        if buffer.dtype not in DTYPES or buffer.elements < 0:
            raise RefusedError(
                f"buffer {buffer.name!r}: expected elements, got {buffer.dtype} {buffer.elements}"
            )
    _at_most(
        "bytes of a program's buffers", sum(b.bytes for b in program.buffers), limits.buffer_bytes
    )
    packings = {b.name: _packing(b, program, arrays) for b in program.buffers}
    return ProgramSource(
        kernels=program.kernels,
        launches=program.launches,
        buffers=program.buffers,
        options=program.options,
        packings={name: packing for name, packing in packings.items() if packing is not None},
    )


def _check_text(kernel: KernelText, limits: Limits) -> None:
    if not _NAME.fullmatch(kernel.name):
        raise RefusedError(f"kernel: expected a name in C, got {kernel.name[:80]!r}")
    _at_most(f"characters of kernel {kernel.name}", len(kernel.text), limits.text_chars)
    if kernel.name not in kernel.text or "\0" in kernel.text:
        raise RefusedError(f"kernel {kernel.name}: expected the text of a kernel, got another")


def _check_launch(launch: KernelLaunch, buffers: frozenset[str]) -> None:
    sizes = (*launch.global_size, *launch.local_size)
    axes = len(launch.global_size), len(launch.local_size)
    if axes != (3, 3) or min(sizes) < 1:
        raise RefusedError(f"kernel {launch.kernel}: expected a range of work-items, got {sizes}")
    if prod(launch.global_size) >= 1 << 62 or max(sizes) >= 1 << 32:
        raise RefusedError(f"kernel {launch.kernel}: expected a range of work-items, got {sizes}")
    if min(launch.flops, launch.bytes) < 0 or max(launch.flops, launch.bytes) >= 1 << 62:
        got = launch.flops
        raise RefusedError(f"kernel {launch.kernel}: expected counts of its work, got {got}")
    strange = {*launch.args, *launch.writes} - buffers
    if strange:
        names = ", ".join(sorted(strange))[:80]
        raise RefusedError(f"kernel {launch.kernel}: no buffer {names!r}")


def _check_images(
    kernel: KernelText, launch: KernelLaunch, buffers: Sequence[ProgramBuffer]
) -> None:
    """An array instead of an image, or the other way round, ends the process of a driver."""
    images = {buffer.name for buffer in buffers if buffer.image}
    given = tuple(n for n, name in enumerate(launch.args) if name in images)
    if given != kernel.images:
        raise RefusedError(f"kernel {kernel.name}: expected its images as arguments, got {given}")


def _packing(
    buffer: ProgramBuffer, program: _Program, arrays: Mapping[str, np.ndarray]
) -> Packing | None:
    pack = None
    if buffer.name in program.packed:
        array = arrays.get(program.packed[buffer.name])
        kind = numpy_dtype(buffer.dtype)
        if array is None or array.size != buffer.elements or array.dtype != kind:
            raise RefusedError(
                f"buffer {buffer.name!r}: expected its packed array, got none that fits"
            )
        pack = GivenPack(array=array)
    if buffer.image and not (pack and fits_image(buffer.elements, buffer.dtype, buffer.image)):
        raise RefusedError(
            f"buffer {buffer.name!r}: expected an image of whole rows, got {buffer.elements} "
            f"{buffer.dtype} in rows of {buffer.image} texels"
        )
    sources = program.sources.get(buffer.name)
    if pack is None and sources is None:
        return None
    return Packing(pack=pack, sources=sources or (buffer.name,))


def _at_most(what: str, found: float, most: float) -> None:
    if found < 0:
        raise RefusedError(f"{what}: expected 0 or more, got {str(found)[:_MOST_DIGITS]}")
    if not found <= most:
        got = f"{found:g}" if found < _SHOWN else "far more"
        raise RefusedError(f"{what}: expected at most {most:g}, got {got}")
