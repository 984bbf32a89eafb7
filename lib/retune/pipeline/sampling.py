"""Stage samples: on which inputs bundles of a network are run, timed and compared.

Read `stage_samples`. The stages that need them ask for it; it is made once.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from retune.bundle.runtime.module import random_inputs, sample_of
from retune.bundle.verify.legal import legal_ranges
from retune.bundle.verify.peers import Peer, open_reference, oracle_version
from retune.bundle.verify.reach import untaken_branches
from retune.core.arrays import save_arrays, view_arrays
from retune.core.errors import InputError, RecordError
from retune.core.keys import file_key
from retune.graph.graph import Graph
from retune.graph.passes.indices import index_counts, least_values
from retune.graph.quantize.samples import archives, load_samples, stacked_samples
from retune.ops import Array
from retune.pipeline.manifest import ImportManifest, SamplesManifest
from retune.pipeline.quantization import float_network
from retune.pipeline.request import TuneRequest, model_file
from retune.pipeline.stage import Inputs, stage

_ARRAYS = "samples.safetensors"


def _inputs(request: TuneRequest, network: ImportManifest) -> Inputs:
    return network.model_key, oracle_version(), *(given_content(request) or [request.samples])


def given_content(request: TuneRequest) -> Inputs:
    """The content of the user's samples; empty for random ones."""
    if isinstance(request.samples, int):
        return ()
    return tuple(file_key(file) for file in archives(Path(request.samples)) if file.is_file())


@stage(SamplesManifest, "samples", _inputs)
def stage_samples(folder: Path, request: TuneRequest, network: ImportManifest) -> SamplesManifest:
    """The oracle of the network, and the samples: given ones, or what random ones it takes.

    Raises: InputError for given samples that are not of the network, and for those that the oracle
    refuses: nothing is measured for a bundle that could not be verified.
    """
    graph = float_network(request, network)
    types = {name: graph.types[name] for name in graph.inputs}
    shapes = {name: entry.shape for name, entry in types.items()}
    oracle = open_reference(model_file(request), lambda: graph, shapes=shapes)
    if isinstance(request.samples, str):
        return _given(folder, Path(request.samples), graph, oracle)
    counts, least = index_counts(graph), least_values(graph)
    ranges = legal_ranges(oracle, types, counts, least, graph.values)
    counts |= {name: high + 1 for name, (_, high) in ranges.items()}
    least |= {name: low for name, (low, _) in ranges.items()}
    made = (
        random_inputs(types, seed, counts, least, graph.values) for seed in range(request.samples)
    )
    return SamplesManifest(
        oracle=oracle.name,
        ranges=tuple((name, *limits) for name, limits in ranges.items()),
        notes=_branch_notes(graph, made),
    )


def _given(folder: Path, path: Path, graph: Graph, oracle: Peer) -> SamplesManifest:
    arrays = stacked_samples(graph, load_samples(path, graph, finite=False))
    count = len(next(iter(arrays.values()), ()))
    for number in range(count):
        try:
            _check_values(graph, sample_of(arrays, number))
            oracle(sample_of(arrays, number))
        except InputError as error:
            raise InputError(f"{path}: sample {number}: {error}") from error
    save_arrays(arrays, folder / _ARRAYS)
    notes = _branch_notes(graph, (sample_of(arrays, number) for number in range(count)))
    return SamplesManifest(oracle=oracle.name, given=count, arrays=_ARRAYS, notes=notes)


def _check_values(graph: Graph, sample: Mapping[str, Array]) -> None:
    """Raises: InputError for an input that has others than its stated values."""
    for name, stated in graph.values.items():
        if tuple(found := sample[name].reshape(-1).tolist()) != stated:
            raise InputError(
                f"input '{name}': expected {list(stated)}, which --value states or is tuned for; "
                f"got {found}"
            )


def _branch_notes(graph: Graph, samples: Iterable[Mapping[str, Array]]) -> tuple[str, ...]:
    return tuple(
        f"all samples take the same branch at {name}: the other one was compared with nothing; "
        "give samples that take it with --samples data.npz"
        for name in untaken_branches(graph, samples)
    )


def given_samples(samples: SamplesManifest) -> dict[str, Array]:
    """The samples that the user gave, along the first axis of an array for each input."""
    if not samples.given:
        return {}
    data = samples.file(samples.arrays).read_bytes()
    return view_arrays(memoryview(data), error=RecordError)
