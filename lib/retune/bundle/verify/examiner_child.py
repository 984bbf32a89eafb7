"""The process in which bundles are verified and timed; its parent's side is `examiner.Examiner`.

`OracleWorker` does what it is asked; `main` is what the process runs. Boards, which have no oracle,
run `bundle_worker` alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bundle_worker import BundleWorker
from retune.bundle.verify.by_parts import Parts, parts_of
from retune.bundle.verify.compare import both, sampling, tolerance_of, verify
from retune.bundle.verify.examination import (
    REQUESTS,
    Comparison,
    Drop,
    Entrant,
    Original,
    Verdict,
    Verify,
)
from retune.bundle.verify.oracles import (
    BySizes,
    Oracle,
    is_quantized,
    oracle_of,
    rounding_of,
    rounds_rows,
    rounds_sums,
)
from retune.bundle.verify.packed_parts import packed_parts
from retune.bundle.verify.peers import Peer, open_peer
from retune.bundle.verify.quantized_parts import quantized_parts
from retune.bundle.verify.reach import OutputReach, Reach
from retune.bundle.verify.rounding import Rounding
from retune.bundle.verify.row_parts import row_parts
from retune.bundle.verify.sequences import NewApart, verify_calls, with_states
from retune.core.dims import SizeValues
from retune.core.target import DeviceSpec
from retune.device.measure.worker import serve
from retune.device.opencl.runtime import Device
from retune.device.opening import open_device
from retune.device.simulated.accelerator import config_of
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise
from retune.targets.vta.packed import packed_network


class OracleWorker(BundleWorker):
    """A BundleWorker with oracles and peers."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._peers: dict[tuple[object, ...], Peer] = {}
        self._oracles: dict[tuple[object, ...], Oracle] = {}
        """By bundle and network; each takes inputs of any sizes."""

    def _carry_out(self, request: object) -> object:
        if isinstance(request, Drop):
            self._peers.clear()
            self._oracles.clear()
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
        module, spec, asked = self._module(request.bundle), self._device.spec, request.comparison
        network = asked.network
        key = request.bundle, network.onnx, network.recipe, network.integers
        if key not in self._oracles:
            self._oracles[key] = oracle_of(module.plan, network, spec)
        return verdict_on(module, spec, asked, self._oracles[key])


def verdict_on(
    module: Module, spec: DeviceSpec, comparison: Comparison, oracle: Oracle | None = None
) -> Verdict:
    """How far the module is from its oracle, by the criterion that decides on publishing it.

    Without an `oracle` of that module and network, one is opened.
    """
    network, plan = comparison.network, module.plan
    reference, graphs = oracle or oracle_of(plan, network, spec)
    parts = _parts(module, network, graphs)
    judged = Judged(plan=plan, network=network, spec=spec, oracle=reference, parts=parts)
    verdict = judged.verdict(Reach(module), comparison)
    if not plan.has_sessions:
        return verdict
    calls = verify_calls(
        module,
        reference,
        seed=comparison.seed,
        tolerance=verdict.found.tolerance,
        sizes=comparison.sizes,
        rounding=judged.rounding,
        parts=parts if judged.rounding is None else None,
    )
    return replace(verdict, found=both(verdict.found, calls))


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A bundle, and what it is judged by."""

    plan: NetworkPlan
    network: Original
    spec: DeviceSpec
    """Of the device that it runs on."""
    oracle: Peer
    parts: Parts | None = None
    """The comparison by parts, where the network has some."""

    @cached_property
    def rounding(self) -> Rounding | None:
        """What rounding does to the network; None where it is compared by parts alone, that no
        rounding goes through."""
        rounds = is_quantized(self.plan, self.network) or rounds_rows(self.plan, self.network)
        if self.parts is not None and rounds and self.parts.role != "confirming":
            return None
        return rounding_of(self.plan, self.network, self.spec, self.oracle)

    def verdict(self, reach: Reach | OutputReach, comparison: Comparison) -> Verdict:
        """How far what `reach` runs is from the oracle on the samples of the comparison.

        Random ones have states that calls of the oracle made.
        """
        plan, oracle, tolerance = self.plan, self.oracle, comparison.tolerance
        taken = sampling(plan, comparison.samples, comparison.given, comparison.sizes)
        feeds, apart = taken.feeds, NewApart(plan)
        if plan.states and not taken.given:
            feeds = with_states(plan, self.network, oracle, taken.sizes)
        found = verify(
            apart.program(reach),
            apart.program(oracle),
            feeds,
            samples=taken.count,
            seed=comparison.seed,
            tolerance=tolerance_of(plan) if tolerance is None else tolerance,
            parts=self.parts,
            unseen=None if taken.given else reach.unseen,
            rounding=apart.rounding(self.rounding),
        )
        found = replace(found, unseen=tuple(reach.unseen()))
        return Verdict(oracle=oracle.name, version=oracle.version, found=found, note=oracle.note)


def _parts(module: Module, network: Original, graphs: BySizes[Graph] | None) -> Parts | None:
    """The comparison by parts where the network has some."""
    if graphs is None:
        return None
    graph = graphs.at(network)
    if is_quantized(module.plan, network):
        simulated = bool(module.plan.simulated_s)
        return _packed_parts(module, graph) if simulated else _quantized_parts(module, graph)
    if module.plan.hosts:
        return parts_of(module, network.onnx, graph)
    return row_parts(module, graphs, graph)


def _quantized_parts(module: Module, graph: Graph) -> Parts | None:
    """The comparison of the parts between roundings of sums, where the module shows them: not
    inside of loops, nor beside host steps."""
    plan = module.plan
    if plan.hosts or plan.loops or plan.sizes or plan.states or not rounds_sums(graph):
        return None
    written = (optimise(graph, order) for order in ("NHWC", "NCHW"))
    return quantized_parts(module, written, tolerance_of(plan))


def _packed_parts(module: Module, graph: Graph) -> Parts | None:
    """The comparison of the parts beside and on the accelerator; None where there is none."""
    config = config_of(module.plan.device)
    if config is None:
        return None
    order = "NCHW" if module.plan.notes.get("layout") == "NCHW" else "NHWC"
    packed = packed_network(graph, config)
    return packed_parts(module, optimise(packed, order))


def main(channel: int, lifeline: int, device: str) -> None:
    """Serves an Examiner until it closes the `channel`, or is gone."""
    serve(channel, lifeline, device, OracleWorker, open_device, (*REQUESTS, Verify))
