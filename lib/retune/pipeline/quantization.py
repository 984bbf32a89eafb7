"""Stage quantize: samples become the recipe of a quantized network, with its accuracy loss.

The recipe, a file of the stage, is all that later stages read: they import the float network and
quantize it by it, which is quick and always gives the same. Without `TuneRequest.quantize` there is
no such stage.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path

from retune.core.errors import InputError
from retune.core.keys import file_key
from retune.core.replacing import replacing
from retune.core.schema import from_json, to_json
from retune.device.opening import spec_of
from retune.device.simulated.accelerator import config_of
from retune.device.simulated.names import is_accelerator
from retune.frontend.onnx.importer import load_file
from retune.frontend.onnx.inputs import shapes_of_samples
from retune.graph.graph import Graph
from retune.graph.quantize.fitting import fitted
from retune.graph.quantize.leaving import leave_in_floats
from retune.graph.quantize.quality import agreement, layer_noise
from retune.graph.quantize.recipe import Recipe, calibrated, qdq, quantized
from retune.graph.quantize.samples import (
    archives,
    check_archives,
    held_out,
    load_samples,
    random_samples,
    shapes_of,
)
from retune.graph.quantize.settings import QuantizeSettings
from retune.ops import Array
from retune.ops.quantized import RESCALING
from retune.pipeline.manifest import ImportManifest, QuantizeManifest
from retune.pipeline.request import MIXED, RANDOM, TuneRequest, model_file
from retune.pipeline.sizes import fixed_inputs
from retune.pipeline.stage import Inputs, stage
from retune.proto.file import read_onnx

_RANDOM_PARTS = 8
_LEFT_TO_CPU = (0,)
"""Beside an accelerator the first convolution stays in floats, if it has fewer channels than a
block."""
_RECIPE = "recipe.json"


def check_quantization(request: TuneRequest) -> None:
    """Raises: InputError for options that do not go together, and for missing samples."""
    if is_accelerator(request.device) and (
        request.quantize is None or request.quantize.scheme != "power2"
    ):
        asked = request.quantize.scheme if request.quantize else "none"
        raise InputError(
            f"device {request.device!r} computes with integers whose scales are powers of two: "
            f"expected quantize power2, got {asked}"
        )
    if (request.pack_start or request.pack_stop) and not is_accelerator(request.device):
        raise InputError(
            f"device {request.device!r}: expected no pack_start and pack_stop, as nothing is "
            f"packed for it, got {request.pack_start or request.pack_stop!r}; leave them out"
        )
    if request.precision == MIXED and request.quantize is None:
        _check_samples(request.calibration, request.accuracy_drop)
    else:
        check_settings(request.quantize, request.calibration, request.accuracy_drop)


def check_settings(
    quantize: QuantizeSettings | None, calibration: str, accuracy_drop: float | None
) -> None:
    """The same, of the request's fields of these names."""
    if quantize is None:
        if calibration or accuracy_drop is not None:
            raise InputError(
                "calibration and accuracy_drop are for quantized networks and those of mixed "
                "precision: expected quantize int8 or power2 beside them, or precision mixed"
            )
        return
    if not calibration and quantize.method != "global_scale":
        raise InputError(
            f"quantize {quantize.scheme}: expected samples of the network's inputs, got "
            "none; name an .npz file or a folder of them with an array for each input "
            "(np.savez('data.npz', NAME=samples)), or random, which is for timing only"
        )
    _check_samples(calibration, accuracy_drop)


def _check_samples(calibration: str, drop: float | None) -> None:
    if drop is not None and not (isfinite(drop) and 0 <= drop <= 100):
        raise InputError(f"accuracy_drop: expected points from 0 to 100, got {drop:g}")
    if calibration not in (RANDOM, ""):
        check_archives("calibration", Path(calibration))


def _inputs(request: TuneRequest, network: ImportManifest) -> Inputs:
    data, own = calibration_content(request), accelerator_inputs(request)
    return network.model_key, _settings(request), data, request.accuracy_drop, *own


def calibration_content(request: TuneRequest) -> list[str]:
    """The contents of the files with samples, as keys; none for random ones."""
    if request.calibration in (RANDOM, ""):
        return []
    return [file_key(file) for file in archives(Path(request.calibration))]


def accelerator_inputs(request: TuneRequest) -> Inputs:
    """Inputs of stages that depend on the layers an accelerator computes; () without one."""
    config = config_of(spec_of(request.device))
    part = (request.pack_start, request.pack_stop)
    return () if config is None else (config, *(part if any(part) else ()))


def _settings(request: TuneRequest) -> QuantizeSettings:
    """The requested settings, completed by the device's."""
    assert request.quantize is not None, "the chain asks for it only then"
    settings = request.quantize
    if not request.calibration:  # nothing but the ranges, which are given
        settings = replace(settings, bias_correction=False)
    if is_accelerator(request.device):
        return replace(settings, weight_bits=8)
    return fitted(settings, spec_of(request.device))


def _left_to_cpu(request: TuneRequest, graph: Graph) -> tuple[int, ...]:
    """The convolutions that stay in floats: those asked for, else what is too narrow to pack."""
    asked = _settings(request).skip_conv_layers
    config = config_of(spec_of(request.device))
    first = next((node for node in graph.nodes if "conv" in node.op), None)
    if asked or config is None or first is None:
        return asked
    narrow = graph.types[first.inputs[0]].shape[1] < config.block
    return _LEFT_TO_CPU if narrow else ()


@stage(QuantizeManifest, "quantize", _inputs)
def stage_quantize(folder: Path, request: TuneRequest, network: ImportManifest) -> QuantizeManifest:
    """The recipe, and how far the quantized network is from the float one.

    A quarter of the samples is held out: no ranges follow from it. It judges, of layers to leave in
    floats too. Raises: InputError for samples that the network does not take.
    """
    graph = sampled_network(request, network)
    settings = replace(_settings(request), skip_conv_layers=_left_to_cpu(request, graph))
    if any(node.op in RESCALING for node in graph.nodes):
        raise InputError(
            f"{request.model}: expected a network of floats, got one that is quantized already; "
            "leave quantization out: its own integers are kept"
        )
    data = calibration_samples(request, graph)
    known, new = held_out(graph, data)
    new = new if all(len(array) for array in new.values()) else known
    left: tuple[str, ...] = ()
    if request.accuracy_drop is not None:
        found = leave_in_floats(graph, known, new, settings, drop=request.accuracy_drop)
        settings, left = found.settings, found.layers
    recipe = calibrated(graph, known, settings)
    (folder / _RECIPE).write_text(to_json(recipe), encoding="utf-8")
    made = quantized(graph, recipe)
    return QuantizeManifest(
        model_key=network.model_key,
        recipe=_RECIPE,
        scheme=settings.scheme,
        weight_bits=settings.weight_bits or 8,
        samples=sum(len(array) for array in list(data.values())[:1]),
        random=request.calibration in (RANDOM, ""),
        left=left,
        layers=layer_noise(graph, known, new, settings),
        calibration=agreement(graph, made, known),
        held_out=agreement(graph, made, new),
    )


def float_network(request: TuneRequest, network: ImportManifest) -> Graph:
    """The imported network as its file has it."""
    return _imported(request, _shapes(network))


def sampled_network(request: TuneRequest, network: ImportManifest) -> Graph:
    """The network at the sizes of the calibration samples, where the file leaves sizes open."""
    if request.calibration in (RANDOM, ""):
        return float_network(request, network)
    graph, samples = read_onnx(model_file(request)).graph, shapes_of(Path(request.calibration))
    return _imported(request, shapes_of_samples(graph, _shapes(network), samples))


def _shapes(network: ImportManifest) -> dict[str, tuple[int, ...]]:
    return {value.name: value.shape for value in network.inputs}


def _imported(request: TuneRequest, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    return load_file(model_file(request), shapes, fixed_inputs(request).values)


def quantized_network(network: ImportManifest, made: QuantizeManifest) -> ImportManifest:
    """The facts of the quantized network: the float one's, and the recipe."""
    return replace(network, model_key=made.key, recipe=str(made.file(made.recipe).resolve()))


def read_recipe(path: Path) -> Recipe:
    """The recipe of a file. Raises: RecordError for another file."""
    return from_json(Recipe, path.read_text(encoding="utf-8"))


def write_qdq(
    request: TuneRequest, network: ImportManifest, made: QuantizeManifest, path: Path
) -> None:
    """Writes the quantized network as an ONNX file that other programs run.

    Raises: ModelError for a node that has no form in ONNX here; nothing is written then.
    """
    model = qdq(float_network(request, network), read_recipe(made.file(made.recipe)))
    with replacing(path) as stream:
        stream.write(model.SerializeToString())


def calibration_samples(
    request: TuneRequest, graph: Graph, parts: int = _RANDOM_PARTS
) -> dict[str, Array]:
    """The samples that the request names; else so many random parts."""
    if request.calibration in (RANDOM, ""):
        return random_samples(graph, parts, request.seed)
    return load_samples(Path(request.calibration), graph)
