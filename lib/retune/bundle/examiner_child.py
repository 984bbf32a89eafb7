"""The process in which bundles are verified and timed; its parent's side is `examiner.Examiner`.

What they say to each other comes first, then `BundleWorker`, which does what it is asked; `main` is
what the process runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from retune.bundle.bench import Benchmark, BenchOptions, CountingClock, compare_times
from retune.bundle.by_parts import Parts, parts_of
from retune.bundle.format import read_bundle
from retune.bundle.forms import best_form, forms_worth_timing
from retune.bundle.module import Module
from retune.bundle.packed_parts import packed_parts
from retune.bundle.peers import Peer, has_onnxruntime, numpy_peer, open_peer, open_reference
from retune.bundle.plan import INTEGERS_NOTE, Form
from retune.bundle.simulated import module_on, simulated_times
from retune.bundle.verify import Verification, verify
from retune.core.errors import DeviceError, RetuneError
from retune.device.accelerator import config_of
from retune.device.ceilings import Ceilings
from retune.device.opening import open_device
from retune.device.runtime import Device
from retune.device.simulated import SimulatedDevice
from retune.device.worker import serve
from retune.graph.blocks import PackOptions, pack
from retune.graph.graph import Graph
from retune.graph.half import HALF, widen_half
from retune.graph.onnx_import import load_file
from retune.graph.passes import optimise
from retune.graph.quantize.recipe import Recipe, quantized


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The network that a bundle was made of, as oracles and peers read it."""

    onnx: Path
    shapes: Mapping[str, tuple[int, ...]]
    """Of every input."""
    recipe: Recipe | None = None
    """What makes the integers of it that the bundle computes."""
    integers: bool = True
    """Whether a bundle that computes with integers is compared with numpy's; else with what other
    runtimes make of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A peer that runs the network beside bundles of it."""

    peer: str
    """A name in `peers.PEERS`."""
    network: Original


Entrant = Path | Rival
"""What takes part in a comparison: a bundle (folder or zip), or a peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Load an entrant, and call it twice on random inputs of the bundle; the second is timed."""

    entrant: Entrant
    bundle: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A whole call takes so long here."""

    call_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Compare the bundle with the oracle on seeded samples; the reply is a Verdict."""

    bundle: Path
    network: Original
    samples: int
    seed: int
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How far a bundle is from an oracle."""

    oracle: str
    """Name of the oracle."""
    version: str
    """Of the oracle."""
    found: Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Time the entrants in turns, on inputs of the bundle; the reply is a Benchmark."""

    entrants: Mapping[str, Entrant]
    bundle: Path
    baseline: str | None
    options: BenchOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Time each step, beside the device's ceilings; the reply is a LaunchProfile for each."""

    bundle: Path
    repeat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListForms:
    """The reply are the forms that the bundle may run in; nothing of it is run."""

    bundle: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FindForm:
    """Time whole calls in each form; the reply is the best one."""

    bundle: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The request cannot be carried out, for this reason; the process is in order."""

    error: RetuneError | OSError


class BundleWorker:
    """An open device with the bundles and peers that were asked for so far."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._modules: dict[Path, Module] = {}
        self._peers: dict[tuple[str, Path], Peer] = {}

    def handle(self, request: object) -> object:
        """Carries out one request."""
        try:
            match request:
                case Open():
                    return self._open(request)
                case Verify():
                    return self._verify(request)
                case Compare():
                    return self._compare(request)
                case Profile():
                    module = self._module(request.bundle)
                    return module.profile(request.repeat, ceilings=Ceilings(self._device))
                case ListForms():
                    return forms_worth_timing(read_bundle(request.bundle), self._device)
                case FindForm():
                    return self._best_form(request.bundle)
                case _:
                    raise DeviceError(f"expected a request of an examiner, got {request}")
        except (RetuneError, OSError) as error:
            return Failed(error=error)
        except MemoryError as error:
            return Failed(error=DeviceError(str(error) or "out of memory"))

    def _module(self, bundle: Path) -> Module:
        if bundle not in self._modules:
            self._modules[bundle] = module_on(read_bundle(bundle), self._device)
        return self._modules[bundle]

    def _call(self, entrant: Entrant, bundle: Path) -> Callable[[], object]:
        """A whole call of the entrant, on random inputs of the bundle."""
        feeds = self._module(bundle).random_inputs()
        if isinstance(entrant, Path):
            module = self._module(entrant)
            return lambda: module.run(feeds)
        network = entrant.network
        key = entrant.peer, network.onnx
        if key not in self._peers:
            self._peers[key] = open_peer(entrant.peer, network.onnx, shapes=network.shapes)
        peer = self._peers[key]
        return lambda: peer(feeds)

    def _timed(self, entrant: Entrant, bundle: Path, clock: CountingClock) -> Callable[[], object]:
        """The same, to be timed by that clock: what an accelerator does is counted, not run."""
        module = self._module(entrant) if isinstance(entrant, Path) else None
        if module is None or not module.plan.simulated_s:
            return self._call(entrant, bundle)
        counted_s = module.plan.simulated_s

        def call() -> None:
            module.run_launches()
            clock.count(counted_s)

        return call

    def _open(self, request: Open) -> Opened:
        call = self._call(request.entrant, request.bundle)
        call()
        start = perf_counter()
        call()
        return Opened(call_s=perf_counter() - start)

    def _verify(self, request: Verify) -> Verdict:
        module = self._module(request.bundle)
        oracle, parts = self._oracle(module, request.network)
        found = verify(
            module,
            oracle,
            module.random_inputs,
            samples=request.samples,
            seed=request.seed,
            tolerance=request.tolerance,
            parts=parts,
        )
        return Verdict(oracle=oracle.name, version=oracle.version, found=found)

    def _oracle(self, module: Module, network: Original) -> tuple[Peer, Parts | None]:
        """The oracle, and the comparison by parts where the network has some."""
        coded = network.integers and INTEGERS_NOTE in module.plan.notes
        if coded or network.recipe is not None:  # notes of older bundles do not say it
            graph = self._graph(network)
            parts = self._packed_parts(module, graph) if module.plan.simulated_s else None
            return numpy_peer(graph), parts
        if has_onnxruntime() and not module.plan.hosts:  # nobody asks for the graph
            return open_peer("onnxruntime", network.onnx, shapes=network.shapes), None
        graph = self._graph(network)
        oracle = open_reference(network.onnx, graph, shapes=network.shapes)
        return oracle, parts_of(module, network.onnx, graph)

    def _packed_parts(self, module: Module, graph: Graph) -> Parts | None:
        """The comparison of the parts beside and on the accelerator; None where there is none."""
        config = config_of(module.plan.device)
        if config is None:
            return None
        order = "NCHW" if module.plan.notes.get("layout") == "NCHW" else "NHWC"
        packed = pack(graph, PackOptions(batch=config.batch, block=config.block))
        return packed_parts(module, optimise(packed, order))

    def _graph(self, network: Original) -> Graph:
        """The network, in float32 where the device computes what is of float16 so."""
        graph = load_file(network.onnx, network.shapes)
        if network.recipe is not None:
            graph = quantized(graph, network.recipe)
        return widen_half(graph) if self._device.spec.lacking(HALF) else graph

    def _compare(self, request: Compare) -> Benchmark:
        if isinstance(self._device, SimulatedDevice):
            bundles = {n: e for n, e in request.entrants.items() if isinstance(e, Path)}
            plans = {name: self._module(bundle).plan for name, bundle in bundles.items()}
            return simulated_times(plans, self._device.board, baseline=request.baseline)
        clock = CountingClock()
        calls = {
            name: self._timed(entrant, request.bundle, clock)
            for name, entrant in request.entrants.items()
        }
        return compare_times(calls, baseline=request.baseline, options=request.options, clock=clock)

    def _best_form(self, bundle: Path) -> Form:
        self._modules.pop(bundle, None)  # each form holds the weights once more
        return best_form(read_bundle(bundle), self._device).form


def main(channel: int, lifeline: int, device: str) -> None:
    """Serves an Examiner until it closes the `channel`, or is gone."""
    serve(channel, lifeline, device, BundleWorker, open_device)
