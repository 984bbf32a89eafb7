"""Stage precision: which layers of a network keep float32, for `--precision mixed`.

Other precisions need no stage: they follow from the request alone, see `network.precision_of`.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from retune.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, TF32, DType
from retune.core.errors import InputError
from retune.core.results import LayerPrecision
from retune.core.target import DeviceSpec
from retune.device.opening import spec_of
from retune.device.simulated.names import is_accelerator
from retune.graph.graph import Graph
from retune.graph.mixed import mixed
from retune.graph.passes.attention import AttentionFusion
from retune.graph.passes.pipeline import Layout, optimise
from retune.graph.passes.precision import Precision
from retune.intrinsics.attention import MMA
from retune.ops import Array
from retune.pipeline.manifest import ImportManifest, PrecisionManifest
from retune.pipeline.quantization import (
    calibration_content,
    calibration_samples,
    sampled_network,
)
from retune.pipeline.request import DEFAULT_MAX_DEVIATION, MIXED, RANDOM, TuneRequest
from retune.pipeline.stage import Inputs, stage
from retune.targets.gpu.few_queries import most_keys
from retune.targets.instructions import multiplied

_PARTS = 4
"""Random samples, where none are given."""
_MARGIN = 0.5
"""Part of the allowed deviation that layers are chosen by: other samples deviate more."""
_PREFERRED = (FLOAT16, BFLOAT16)
"""By their mantissas: where both are as fast, the one with more bits."""


def check_precision(request: TuneRequest) -> None:
    """Raises: InputError for options that do not go together."""
    if request.precision != MIXED and request.max_deviation != DEFAULT_MAX_DEVIATION:
        raise InputError(
            f"max_deviation {request.max_deviation:g}: expected precision {MIXED} beside it, got "
            f"{request.precision}; leave it out"
        )
    if not request.lowered:
        return
    asked = f"precision {request.precision}"
    if request.device and is_accelerator(request.device):
        raise InputError(
            f"{asked}: expected float32 for device {request.device!r}, which computes with "
            "integers; leave the precision out"
        )
    if request.quantize is not None:
        raise InputError(
            f"{asked}: expected no quantization beside it, got {request.quantize.scheme}; leave "
            "one of them out"
        )


def small_float_of(spec: DeviceSpec) -> DType:
    """The type of 16 bits that is the fastest one on the device.

    One that it has instructions to multiply; else one that it converts.
    """
    for known in (multiplied(spec), spec.stored):
        for dtype in _PREFERRED:
            if dtype in known:
                return dtype
    return BFLOAT16


def _inputs(request: TuneRequest, network: ImportManifest) -> Inputs:
    bounds = (request.max_deviation, request.accuracy_drop)
    dtype = small_float_of(spec_of(request.device))
    return network.model_key, dtype, *bounds, calibration_content(request), request.seed


@stage(PrecisionManifest, "precision", _inputs)
def stage_precision(_: Path, request: TuneRequest, network: ImportManifest) -> PrecisionManifest:
    """Select the layers that keep float32, so that outputs deviate by no more than is allowed.

    Raises: InputError for samples that the network does not take.
    """
    spec = spec_of(request.device)
    precision = Precision(own=spec.stored, stored=small_float_of(spec))
    layout: Layout = "NCHW" if network.layout == "NCHW" else "NHWC"
    written = sampled_network(request, network)
    graph = optimise(written, layout, precision=Precision(own=spec.stored))
    random = request.calibration in (RANDOM, "")
    data = calibration_samples(request, graph, _PARTS)
    bound = _MARGIN * request.max_deviation
    found = mixed(graph, data, precision, deviation=bound, drop=request.accuracy_drop)
    return PrecisionManifest(
        model_key=network.model_key,
        stored=precision.stored,
        max_deviation=request.max_deviation,
        samples=_count(graph, data),
        random=random,
        kept=found.precision.kept,
        layers=tuple(
            LayerPrecision(
                layer=entry.layer,
                op=entry.op,
                dtype=FLOAT32 if entry.layer in found.precision.kept else precision.stored,
                decibels=entry.decibels,
            )
            for entry in found.noise
        ),
        quality=found.agreement,
    )


def _count(graph: Graph, data: Mapping[str, Array]) -> int:
    name = graph.inputs[0]
    return len(data[name]) // (graph.types[name].shape or (1,))[0]


def mixed_network(network: ImportManifest, made: PrecisionManifest) -> ImportManifest:
    """The facts of the network in mixed precision: those of float32, under a key of its own."""
    return replace(network, model_key=made.key)


def precision_named(name: str, spec: DeviceSpec | None) -> Precision:
    """The precision of that name on the device; None: on one that has no instructions.

    TF32 is what some instructions read of float32: without them products are of float32.
    """
    own = spec.stored if spec else frozenset[DType]()
    fusion = _fusion(spec) if spec else AttentionFusion()
    dtype, beside = DType(name), spec is not None and _beside(spec)
    if dtype is not TF32:
        return Precision(own=own, stored=dtype, attention=fusion, beside=beside)
    rounds = spec is not None and FLOAT32 in multiplied(spec)
    operands = TF32 if rounds else None
    return Precision(own=own, operands=operands, attention=fusion, beside=beside)


def _fusion(spec: DeviceSpec) -> AttentionFusion:
    """The forms of attention that the device computes as one op."""
    return AttentionFusion(tiles=MMA in spec.instructions, most_keys=most_keys(spec))


def precision_from(made: PrecisionManifest, spec: DeviceSpec) -> Precision:
    """The precision that the network is computed in."""
    return Precision(
        own=spec.stored,
        stored=DType(made.stored),
        kept=made.kept,
        attention=_fusion(spec),
        beside=_beside(spec),
    )


def _beside(spec: DeviceSpec) -> bool:
    """Whether the device's kernels make several products of one row: it has many units."""
    return spec.device_class == "gpu"
