"""Stages import and extract: from a model's name to a graph cut into tasks."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from retune.core.config import cache_root
from retune.core.dims import SizeValues, apart, is_fixed, note, remembered, values_text
from retune.core.dtypes import UNKNOWN, DType
from retune.core.errors import InputError
from retune.core.keys import FileVersion, cached_by_file, file_key, file_version
from retune.core.layouts import LAYOUTS
from retune.core.results import TaskEntry
from retune.core.states import listed
from retune.device.measure.gate import HOST
from retune.device.opening import spec_of
from retune.device.simulated.accelerator import config_of
from retune.frontend.models import resolve_model
from retune.frontend.onnx.importer import load_file
from retune.frontend.onnx.inputs import OpenInputs, Shapes
from retune.graph.batch_loop import BATCH_LOOP, BatchLoop
from retune.graph.fuse import partition
from retune.graph.passes.micro_batches import SharedCache, batch_of, in_micro_batches
from retune.graph.passes.pipeline import (
    FLOAT32_PRECISION,
    Layout,
    optimise,
    passes_for,
)
from retune.graph.passes.precision import Precision
from retune.graph.passes.states import with_states
from retune.graph.quantize.recipe import quantized
from retune.pipeline.manifest import ImportManifest, OutputLabels, TaskManifest, ValueInfo
from retune.pipeline.precision import precision_from, precision_named, stage_precision
from retune.pipeline.quantization import (
    accelerator_inputs,
    quantized_network,
    read_recipe,
    stage_quantize,
)
from retune.pipeline.request import FULL_PRECISION, MIXED, TuneRequest, model_file
from retune.pipeline.results import TuneEvent
from retune.pipeline.sampling import given_content, stage_samples
from retune.pipeline.sizes import fixed_inputs, opened, usual_request
from retune.pipeline.stage import Inputs, stage
from retune.pipeline.watch import tell
from retune.proto.file import element_types, external_files, read_onnx
from retune.proto.labels import Numbered, with_numbers
from retune.search.counted import counted_network
from retune.search.defaults import DEFAULT_MAX_ERROR
from retune.search.extract import Network, extract
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.packed import packed_network

_MANY_NODES = 2000
"""Of a network whose import takes so many seconds that it says what it does."""

Bindings = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Quantizing:
    """How a float network is quantized."""

    recipe: Path
    """What stage quantize wrote."""
    accelerator: VtaConfig | None = None
    """What runs a part of it, which is packed."""
    packed_part: tuple[str, str] = ("", "")
    """The ops between which that part is."""


@dataclass(frozen=True, slots=True, eq=False)
class ImportedNetwork:
    """A model in its optimised form, and the path of its ONNX file."""

    onnx: Path
    network: Network
    nodes: int
    flops: int
    labels: tuple[OutputLabels, ...]
    """Of outputs that are strings or maps in the file."""


def import_network(
    model: str | Path,
    shapes: Shapes | None = None,
    layout: str = "NHWC",
    cache: Path | str | None = None,
    *,
    values: Shapes | None = None,
    max_error: float = DEFAULT_MAX_ERROR,
    states: tuple[str, ...] = (),
    precision: Precision = FLOAT32_PRECISION,
    quantizing: Quantizing | None = None,
) -> ImportedNetwork:
    """The model (`FILE`, `zoo:NAME`, `light:NAME`) imported, optimised and cut into tasks.

    Models that are built rather than read are stored in `cache` (default: the RETUNE_CACHE folder).
    `values` are what the elements of inputs are, in order.
    `states` are inputs that are outputs of the call before, see `core.states`.
    `max_error` is the largest error of a layer, as a part of its output's range. `precision` says
    which types lie between kernels. By `quantizing`, integers are made of it.

    Raises: ModelError for a model that cannot be used, LookupFailed for an unknown name.
    """
    given, model = {name: tuple(shape) for name, shape in (shapes or {}).items()}, str(model)
    path = resolve_model(model, Path(cache or cache_root()) / "models", given)
    own = {} if model.startswith("zoo:") else given
    versions = tuple(map(file_version, (path, *_external_files(path))))
    stated = tuple(sorted(own.items())), tuple(sorted((values or {}).items()))
    with HOST.working():
        made = _Importing(layout, max_error, states, precision, quantizing)
        return _import(path, versions, stated, made)


_content = cached_by_file(16)(file_key)
_external_files = cached_by_file(4)(external_files)


@lru_cache(maxsize=2)
def _import(
    path: Path,
    versions: tuple[FileVersion, ...],
    stated: tuple[Bindings, Bindings],
    importing: "_Importing",
) -> ImportedNetwork:
    """Large, so that only the last two are kept; `versions` are those of the model's files."""
    del versions
    shapes, values = map(dict, stated)
    inputs = OpenInputs(shapes, values)
    return importing.network(path, inputs, inputs)


@dataclass(frozen=True, slots=True)
class _Importing:
    """How models become networks."""

    layout: str
    max_error: float
    states: tuple[str, ...]
    precision: Precision
    quantizing: Quantizing | None

    def network(
        self, path: Path, stated: OpenInputs, counting: OpenInputs | None
    ) -> ImportedNetwork:
        """The model of a file, imported, optimised and cut into tasks.

        `counting` is what is stated of it where it has counts; None: it has none.
        """
        labels = _labels(with_numbers(read_onnx(path)))

        def made(counts: bool) -> Network:
            with apart() as assumed:
                counted = counts and counting is not None
                network = self._extracted(path, stated, assumed.values, counts=counted)
            has_counts = any(size.counted for size in network.graph.sizes)
            if has_counts and counting is not None and counting is not stated:
                return self._extracted(path, counting, assumed.values, counts=True)
            note(assumed.conditions)
            return network

        network = counted_network(made)
        flops = sum(task.flops * task.weight for task in network.tasks.values())
        return ImportedNetwork(path, network, len(network.graph.nodes), flops, labels)

    def _extracted(
        self, path: Path, stated: OpenInputs, at_hand: SizeValues, *, counts: bool
    ) -> Network:
        graph = load_file(path, stated.shapes, stated.values, counts=counts)
        graph = with_states(graph, self.states)
        if len(graph.nodes) >= _MANY_NODES:
            where = f" for {values_text(at_hand)}" if at_hand else ""
            text = f"{path.name}: {len(graph.nodes)} nodes are optimized and cut into tasks{where}"
            tell(TuneEvent(stage="import", text=text))
        by = self.quantizing
        accelerator = by.accelerator if by else None
        if by is not None:
            graph = quantized(graph, read_recipe(by.recipe))
            if accelerator is not None:
                start, stop = by.packed_part
                graph = packed_network(graph, accelerator, start_name=start, stop_name=stop)
        return extract(
            optimise(graph, order_of(self.layout), precision=self.precision),
            max_error=self.max_error,
            accelerator=accelerator,
        )


def _labels(found: Numbered) -> tuple[OutputLabels, ...]:
    return tuple(
        OutputLabels(output=output, labels=table, columns=output in found.maps)
        for output, table in found.tables.items()
    )


def order_of(layout: str) -> Layout:
    """The order of axes in which the graph is written down."""
    match layout:
        case "NHWC" | "NCHW":
            return layout
        case "auto" | "NCHW16c":  # written in NHWC: stage layout assigns activation layouts
            return "NHWC"
        case _:
            raise InputError(f"layout {layout!r} is not known; choose {', '.join(LAYOUTS)}")


def open_network(request: TuneRequest) -> ImportedNetwork:
    """The request's model, imported for its device, and quantized if that is asked for."""
    precision, recipe = precision_of(request), ""
    if request.quantize is not None:
        network = stage_import(request)
        recipe = quantized_network(network, stage_quantize(request, network)).recipe
    imported = _open(request, precision, recipe)
    return _in_micro_batches(imported, _cache_of(request), request.max_error)


def _cache_of(request: TuneRequest) -> SharedCache | None:
    """The last cache of the request's device; None: it is not one that its kernels share."""
    spec = spec_of(request.device)
    known = spec.device_class == "cpu" and spec.l3_bytes > 0
    return SharedCache(spec.l3_bytes, spec.compute_units) if known else None


@remembered(maxsize=2)
def _in_micro_batches(
    imported: ImportedNetwork, cache: SharedCache | None, max_error: float
) -> ImportedNetwork:
    """The network for a processor with that cache; the same object where its batch stays whole."""
    graph = in_micro_batches(imported.network.graph, cache) if cache else imported.network.graph
    if graph is imported.network.graph:
        return imported
    return replace(imported, network=extract(graph, max_error=max_error), nodes=len(graph.nodes))


def _open(request: TuneRequest, precision: Precision, recipe: str = "") -> ImportedNetwork:
    stated = fixed_inputs(request)
    return import_network(
        request.model,
        stated.shapes,
        request.layout,
        Path(request.work),
        values=stated.values,
        max_error=request.max_error,
        states=request.states,
        precision=precision,
        quantizing=_quantizing(request, recipe),
    )


def precision_of(request: TuneRequest) -> Precision:
    """The precision of the request's network; layers are judged at the sizes that occur most."""
    if request.precision == MIXED:
        own = usual_request(request)
        made = stage_precision(own, stage_import(own))
        return precision_from(made, spec_of(request.device))
    return _stated_precision(request)


def _stated_precision(request: TuneRequest) -> Precision:
    """The precision by the request alone: that of the network which layers are judged in."""
    spec = spec_of(request.device) if request.device else None
    name = FULL_PRECISION if request.precision == MIXED else request.precision
    return precision_named(name, spec)


def _quantizing(request: TuneRequest, recipe: str) -> Quantizing | None:
    """How the request's network is quantized by a recipe, the path of which may be empty."""
    if not recipe:
        return None
    part = request.pack_start, request.pack_stop
    return Quantizing(Path(recipe), config_of(spec_of(request.device)), part)


def traced_network(request: TuneRequest, recipe: str, *, counts: bool) -> Network:
    """The network of a request with ranges: extents are in terms of its sizes.

    To be called where sizes are assumed (`core.dims.assuming`), which it is traced for; those that
    have a single value there are numbers, as in a network of fixed shapes, unless it has counts,
    which are the same in all programs. Without `counts` what stands behind one is on the host.
    `recipe` is the path of what makes integers of it; empty: it is as its file has it.
    """
    importing = _Importing(
        request.layout,
        request.max_error,
        request.states,
        precision_of(request),
        _quantizing(request, recipe),
    )
    with HOST.working():
        stated = opened(request)
        counting = stated if counts else None
        imported = importing.network(model_file(request), stated.at_hand, counting)
        return _in_micro_batches(imported, _cache_of(request), request.max_error).network


def _import_inputs(request: TuneRequest) -> Inputs:
    path, spec = model_file(request), spec_of(request.device)
    contents = [_content(file) for file in (path, *_external_files(path))]
    half = spec.device_class != "cpu"  # as the keys of earlier versions say it
    stated = (request.shapes, request.values) if request.values else (request.shapes,)
    inputs: Inputs = (contents, *stated, request.layout, half)
    if stored := sorted(_small_floats(path) & spec.stored):
        inputs += (stored,)
    if request.states:
        inputs += (("states", request.states),)
    named = request.lowered and request.precision != MIXED  # which follows from float32
    return (*inputs, request.precision) if named else inputs


@cached_by_file(4)
def _small_floats(path: Path) -> frozenset[DType]:
    """The small floats that are types of tensors in the file."""
    return frozenset(dtype for dtype in element_types(read_onnx(path)) if dtype.is_small_float)


@stage(ImportManifest, "import", _import_inputs)
def stage_import(_: Path, request: TuneRequest) -> ImportManifest:
    """The facts of the imported network.

    Raises: ModelError for a network that cannot be used. InputError for an unknown device.
    """
    precision = _stated_precision(request)
    imported = _open(request, precision)
    graph = imported.network.graph
    if graph.states:
        text = f"states: {listed(graph.states)}; with --state none they are inputs and outputs"
        tell(TuneEvent(stage="import", text=text))
    inputs = {name: graph.type_in_model(name) for name in graph.inputs}
    outputs = {name: graph.type_in_model(name) for name in graph.outputs}
    passes = passes_for(order_of(request.layout), precision=precision)
    return ImportManifest(
        model_key=stage_import.key(request),
        layout=request.layout,
        inputs=tuple(
            ValueInfo(name=name, dtype=entry.dtype, shape=entry.shape)
            for name, entry in inputs.items()
        ),
        output_values=tuple(
            ValueInfo(name=name, dtype=entry.dtype, shape=_stated(entry.shape))
            for name, entry in outputs.items()
        ),
        nodes=imported.nodes,
        parameters=sum(int(a.size) for a in graph.constants.values()),
        flops=imported.flops,
        passes=tuple(step.name for step in passes),
        labels=imported.labels,
    )


def _stated(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The extents, unknown where they depend on sizes or on data."""
    return tuple(extent if is_fixed(extent) else UNKNOWN for extent in shape)


def _extract_inputs(request: TuneRequest, network: ImportManifest) -> Inputs:
    own = (network.model_key, *accelerator_inputs(request))
    cache = _cache_of(request) if batch_of(each.shape for each in network.inputs) > 1 else None
    batched: Inputs = (("loops over the batch", cache.bytes, cache.units),) if cache else ()
    return ("constant bytes, samples", *own, *given_content(request), *batched)


@stage(TaskManifest, "extract", _extract_inputs)
def stage_extract(_: Path, request: TuneRequest, network: ImportManifest) -> TaskManifest:
    """The network's tasks with their weights. Raises: InputError, as `stage_samples`."""
    stage_samples(request, network)  # before anything is measured
    found = open_network(request).network
    entries = tuple(
        TaskEntry(
            key=t.key,
            name=t.name,
            op=t.op,
            weight=t.weight,
            flops=t.flops,
            input_shapes=t.input_shapes,
            output_shape=t.output_shape,
            epilogue=t.epilogue,
            tunable=t.tunable,
            constant_bytes=t.constant_bytes,
        )
        for t in found.tasks.values()
    )
    layers = Counter[int]()
    for loop in (BatchLoop.of(n.attrs) for n in found.graph.nodes if n.op == BATCH_LOOP):
        layers[loop.step] += len(partition(loop.body))
    return TaskManifest(
        model_key=network.model_key, tasks=entries, micro_batches=tuple(sorted(layers.items()))
    )
