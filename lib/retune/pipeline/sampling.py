"""Stage samples: on which inputs bundles of a network are run, timed and compared.

Read `stage_samples`. The stages that need them ask for it; it is made once.
"""

from pathlib import Path

from retune.bundle.verify.legal import legal_ranges
from retune.bundle.verify.peers import open_reference, oracle_version
from retune.graph.passes.indices import index_counts, least_values
from retune.pipeline.manifest import ImportManifest, SamplesManifest
from retune.pipeline.quantization import float_network
from retune.pipeline.request import TuneRequest, model_file
from retune.pipeline.stage import Inputs, stage


def _inputs(_: TuneRequest, network: ImportManifest) -> Inputs:
    return network.model_key, oracle_version()


@stage(SamplesManifest, "samples", _inputs)
def stage_samples(_: Path, request: TuneRequest, network: ImportManifest) -> SamplesManifest:
    """The oracle of the network, and what samples it takes.

    Raises: InputError for inputs of which the oracle refuses all samples: nothing is measured for a
    bundle that could not be verified.
    """
    graph = float_network(request, network)
    types = {name: graph.types[name] for name in graph.inputs}
    shapes = {name: entry.shape for name, entry in types.items()}
    oracle = open_reference(model_file(request), lambda: graph, shapes=shapes)
    ranges = legal_ranges(oracle, types, index_counts(graph), least_values(graph))
    return SamplesManifest(
        oracle=oracle.name,
        ranges=tuple((name, *limits) for name, limits in ranges.items()),
    )
