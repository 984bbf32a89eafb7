"""What tests of hosts share with others."""

from pathlib import Path

from retune.bundle.build import build_plan
from retune.bundle.plan import NetworkPlan
from retune.core.target import GENERIC_CPU
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract
from tests.support.host_networks import NETWORKS


def plan_of(name: str, folder: Path) -> NetworkPlan:
    network = extract(optimise(NETWORKS[name](folder).graph))
    return build_plan(network, {}, GENERIC_CPU, model_key="", notes={})
