"""The process in which bundles are verified and timed; its parent's side is `examiner.Examiner`.

`OracleWorker` does what it is asked; `main` is what the process runs. Boards, which have no oracle,
run `bundle_worker` alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from retune.bundle.plan import INTEGERS_NOTE, ROWS_NOTE, NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bundle_worker import BundleWorker
from retune.bundle.verify.by_parts import Parts, parts_of
from retune.bundle.verify.compare import SampleSet, both, sampling, tolerance_of, verify
from retune.bundle.verify.examination import REQUESTS, Drop, Entrant, Original, Verdict, Verify
from retune.bundle.verify.packed_parts import packed_parts
from retune.bundle.verify.peers import Peer, has_onnxruntime, numpy_peer, open_peer, open_reference
from retune.bundle.verify.reach import OutputReach, Reach
from retune.bundle.verify.rounding import Rounding, RoundingModel, StoredRounding
from retune.bundle.verify.sequences import verify_calls
from retune.core.dims import SizeValues, apart
from retune.core.dtypes import FLOAT16
from retune.core.keys import file_key
from retune.core.schema import from_json
from retune.core.target import DeviceSpec
from retune.device.measure.worker import serve
from retune.device.opencl.runtime import Device
from retune.device.opening import open_device
from retune.device.simulated.accelerator import config_of
from retune.frontend.onnx.importer import load_file
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise
from retune.graph.passes.storage import in_compute_types
from retune.graph.quantize.recipe import Recipe, quantized
from retune.proto.file import external_files
from retune.targets.vta.packed import packed_network


class OracleWorker(BundleWorker):
    """A BundleWorker with oracles and peers."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._peers: dict[tuple[object, ...], Peer] = {}

    def _carry_out(self, request: object) -> object:
        if isinstance(request, Drop):
            self._peers.clear()
        return self._verify(request) if isinstance(request, Verify) else super()._carry_out(request)

    def _call(self, entrant: Entrant, bundle: Path, sizes: SizeValues) -> Callable[[], object]:
        """A whole call of the entrant, on random inputs of the bundle."""
        if isinstance(entrant, Path):
            return super()._call(entrant, bundle, sizes)
        feeds = self._module(bundle).random_inputs(sizes=sizes)
        network = entrant.network
        key = entrant.peer, network.onnx, tuple(network.shapes.items())
        if key not in self._peers:
            self._peers[key] = open_peer(entrant.peer, network.onnx, shapes=network.shapes)
        peer = self._peers[key]
        return lambda: peer(feeds)

    def _verify(self, request: Verify) -> Verdict:
        return verdict_on(
            self._module(request.bundle),
            request.network,
            self._device.spec,
            samples=request.samples,
            given=request.given,
            seed=request.seed,
            tolerance=request.tolerance,
            sizes=request.sizes,
        )


def verdict_on(
    module: Module,
    network: Original,
    spec: DeviceSpec,
    *,
    samples: int | None = None,
    given: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    sizes: SizeValues | None = None,
) -> Verdict:
    """How far the module is from its oracle, by the criterion that decides on publishing it.

    Samples, seed, tolerance and sizes are those of `examination.Verify`.
    """
    oracle, parts = _oracle(module, network, spec)
    taken = sampling(module.plan, samples, given or {}, sizes)
    judged = Judged(plan=module.plan, network=network, spec=spec, oracle=oracle, parts=parts)
    verdict = judged.verdict(Reach(module), taken, seed, tolerance)
    if not module.plan.has_sessions:
        return verdict
    if module.plan.sizes and oracle.name == "numpy":
        return verdict.without_calls("the oracle numpy has fixed sizes")
    allowed = verdict.found.tolerance
    calls = verify_calls(module, oracle, seed=seed, tolerance=allowed, sizes=sizes)
    return replace(verdict, found=both(verdict.found, calls))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A bundle, and what it is judged by."""

    plan: NetworkPlan
    network: Original
    spec: DeviceSpec
    """Of the device that it runs on."""
    oracle: Peer
    parts: Parts | None = None
    """The comparison by parts, where the network has some."""

    def verdict(
        self, reach: Reach | OutputReach, taken: SampleSet, seed: int, tolerance: float | None
    ) -> Verdict:
        """How far what `reach` runs is from the oracle on these samples."""
        plan, oracle = self.plan, self.oracle
        found = verify(
            reach,
            oracle,
            taken.feeds,
            samples=taken.count,
            seed=seed,
            tolerance=tolerance_of(plan) if tolerance is None else tolerance,
            parts=self.parts,
            unseen=None if taken.given else reach.unseen,
            rounding=rounding_of(plan, self.network, self.spec, oracle),
        )
        found = replace(found, unseen=tuple(reach.unseen()))
        return Verdict(oracle=oracle.name, version=oracle.version, found=found, note=oracle.note)


def _oracle(module: Module, network: Original, spec: DeviceSpec) -> tuple[Peer, Parts | None]:
    """The oracle, and the comparison by parts where the network has some."""
    oracle, graph = oracle_of(module.plan, network, spec)
    if _is_coded(module.plan, network):
        if graph is None or not module.plan.simulated_s:
            return oracle, None
        return oracle, _packed_parts(module, graph)
    if not module.plan.hosts or graph is None:
        return oracle, None
    return oracle, parts_of(module, network.onnx, graph)


def _packed_parts(module: Module, graph: Graph) -> Parts | None:
    """The comparison of the parts beside and on the accelerator; None where there is none."""
    config = config_of(module.plan.device)
    if config is None:
        return None
    order = "NCHW" if module.plan.notes.get("layout") == "NCHW" else "NHWC"
    packed = packed_network(graph, config)
    return packed_parts(module, optimise(packed, order))


def oracle_of(plan: NetworkPlan, network: Original, spec: DeviceSpec) -> tuple[Peer, Graph | None]:
    """What a bundle of that plan is compared with, and the network where its parts need it.

    In float32 where a device like that does not store the network's small floats. What rounds rows
    to int8 where onnxruntime does not (`ROWS_NOTE`) is compared with numpy's meaning of it.
    """
    if network.integers and ROWS_NOTE in plan.notes and not _is_coded(plan, network):
        return numpy_peer(_graph_of(network, spec)), None
    if not _is_coded(plan, network) and has_onnxruntime() and not plan.hosts:
        opened = partial(_graph_of, network, spec)
        return open_reference(network.onnx, opened, shapes=network.shapes), None
    counts = any(each.counted for each in plan.sizes)
    graph = _graph_of(network, spec, counts=counts)
    if _is_coded(plan, network):
        return numpy_peer(graph), graph
    return open_reference(network.onnx, lambda: graph, shapes=network.shapes), graph


def rounding_of(
    plan: NetworkPlan, network: Original, spec: DeviceSpec, oracle: Peer
) -> Rounding | None:
    """What rounding does to the network, from the cache where it was found before.

    None where integers have to be exactly those of numpy: rounding is no excuse there.
    """
    if _is_coded(plan, network):
        return None

    def content() -> object:
        files = (network.onnx, *external_files(network.onnx))
        asked = dict(network.shapes), FLOAT16 in spec.stored, oracle.name, oracle.version
        asked = (*asked, dict(network.values)) if network.values else asked
        return [file_key(file) for file in files], asked

    def unoptimised() -> Peer:
        return open_peer("onnxruntime", network.onnx, shapes=network.shapes, optimised=False)

    graph = partial(_graph_of, network, spec)
    other = oracle.name != "numpy"
    model = RoundingModel(graph, oracle, unoptimised) if other else RoundingModel(graph)
    return StoredRounding(model, content)


def _graph_of(network: Original, spec: DeviceSpec, *, counts: bool = False) -> Graph:
    with apart():  # what is made of it is right for all counts, or on the host
        graph = load_file(network.onnx, network.shapes, network.values, counts=counts)
    if network.recipe:
        graph = quantized(graph, from_json(Recipe, network.recipe))
    return in_compute_types(graph, spec.stored)


def _is_coded(plan: NetworkPlan, network: Original) -> bool:
    """Whether it has to compute what numpy makes of integers; notes of older bundles do not say."""
    return (network.integers and INTEGERS_NOTE in plan.notes) or bool(network.recipe)


def main(channel: int, lifeline: int, device: str) -> None:
    """Serves an Examiner until it closes the `channel`, or is gone."""
    serve(channel, lifeline, device, OracleWorker, open_device, (*REQUESTS, Verify))
