"""Random networks in every layout, as floats and as integers, agree with their numpy meaning.

A failure names the seed; `random_model(seed, steps)` with fewer steps is the beginning of the same
network. The numpy meaning is compared with onnxruntime's in `tests/unit/graph/test_random.py`.
"""

from pathlib import Path

import numpy as np
import pytest

from retune.bundle.build import build_plan
from retune.bundle.invariants import verify_plan
from retune.bundle.runtime.module import Module
from retune.codegen.source import ProgramSource
from retune.core.dtypes import INT8
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.samples import random_samples
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from retune.ops import Array
from retune.records.schema import Measurement, succeeded
from retune.records.store import RecordStore
from retune.search.extract import extract
from retune.search.layout.assignment import uniform_layout, with_layouts
from retune.search.layout.search import LayoutSearch
from retune.search.layout.trials import best_in_layouts
from retune.search.session import Session
from tests.external.on_device import opened
from tests.support.networks import random_network
from tests.support.oracle import assert_close
from tests.support.quantize_networks import exact_part
from tests.support.random_blocks import random_blocks, random_recurrent
from tests.support.random_values import random_values, special_functions
from tests.support.random_ways import GPU, SHORT, compiled, ways
from tests.support.search_fakes import FakeRunner, measured, settings

pytestmark = pytest.mark.device

WAYS = ways()
SETTINGS = (
    QuantizeSettings(),
    QuantizeSettings(weight_bits=7),
    QuantizeSettings(activations=INT8),
    POWER2,
)
MANY = range(1000, 1008)
"""Seeds of networks for each way, where there is time."""


def assert_runs(graph: Graph, inputs: dict[str, Array], way: tuple[str, str], seed: int) -> None:
    """What the network computes, compiled so, is what numpy computes."""
    found = compiled(graph, *way, seed, for_blocks=seed % 2 == 0).run(inputs)
    assert_same(found, run_graph(graph, inputs), f"seed {seed}, {way}")


def assert_same(made: dict[str, Array], meant: dict[str, Array], where: str) -> None:
    """Integers bit by bit."""
    for name, expected in meant.items():
        found = made[name]
        assert found.dtype == expected.dtype
        if not expected.dtype.name.startswith("float"):
            np.testing.assert_array_equal(found, expected, err_msg=f"{where}: {name}")
            continue
        scale = max(float(np.ptp(expected)), 0.1)  # norms make differences of last bits large
        np.testing.assert_allclose(
            found / scale, expected / scale, rtol=0, atol=5e-4, err_msg=f"{where}: {name}"
        )


def network(seed: int, *, blocks: bool) -> Graph:
    """Of `random_networks`, or of `random_blocks`."""
    return import_model(random_blocks(seed)).verify() if blocks else random_network(seed)


def floats(way: tuple[str, str], seed: int, *, blocks: bool = False) -> None:
    graph = network(seed, blocks=blocks)
    assert_runs(graph, random_inputs(graph, seed), way, seed)


def integers(way: tuple[str, str], seed: int, *, blocks: bool = False) -> None:
    graph = network(seed, blocks=blocks)
    made = quantize(graph, random_samples(graph, 2, seed), SETTINGS[seed % len(SETTINGS)])
    assert_runs(*exact_part(made, seed), way, seed)


@pytest.mark.parametrize("number", range(6))
def test_a_random_network(number: int):
    floats(WAYS[(3 * number + 1) % len(WAYS)], 100 + number)


@pytest.mark.parametrize("number", range(2))
def test_random_blocks(number: int):
    floats(WAYS[5 * number + 3], 100 + number, blocks=True)


@pytest.mark.parametrize("number", range(3))
def test_a_random_network_in_integers(number: int):
    integers(WAYS[5 * number + 2], 200 + number)


def recurrent(way: tuple[str, str], seed: int) -> None:
    graph = import_model(random_recurrent(seed)).verify()
    assert_runs(graph, random_inputs(graph, seed), way, seed)


@pytest.mark.parametrize("seed", [3, 8, 12])
def test_random_recurrent_layers(seed: int):
    """In each of these, two loops of unlike numbers of steps could share a kernel."""
    recurrent(WAYS[seed % len(WAYS)], seed)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("seed", MANY)
def test_many_random_recurrent_layers(seed: int, way: tuple[str, str]):
    recurrent(way, seed + 50 * WAYS.index(way))


def special(way: tuple[str, str], seed: int) -> None:
    """NaN, infinities, zeros of both signs and integers at their limits."""
    model, feeds = random_values(seed)
    graph = import_model(model).verify()
    with np.errstate(invalid="ignore", over="ignore"):
        meant = run_graph(graph, feeds)
    assert_close(compiled(graph, *way, seed).run(feeds), meant, f"seed {seed}, {way}")


@pytest.mark.parametrize("number", range(2))
def test_random_special_values(number: int):
    special(WAYS[5 * number], 300 + number)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS[:8], ids=" ".join)
@pytest.mark.parametrize("first", range(1000, 1100, 10))
def test_many_random_special_values(first: int, way: tuple[str, str]):
    for seed in range(first, first + 10):
        special(way, seed + 100 * WAYS.index(way))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS[:8], ids=" ".join)
def test_functions_of_special_values(way: tuple[str, str]):
    model, feeds = special_functions()
    graph = import_model(model).verify()
    with np.errstate(all="ignore"):
        meant = run_graph(graph, feeds)
    assert_close(compiled(graph, *way).run(feeds), meant, f"functions, {way}")


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("seed", MANY)
def test_many_random_networks(seed: int, way: tuple[str, str], *, blocks: bool):
    floats(way, seed + 50 * WAYS.index(way), blocks=blocks)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("seed", MANY)
def test_many_random_networks_in_integers(seed: int, way: tuple[str, str], *, blocks: bool):
    integers(way, seed + 50 * WAYS.index(way), blocks=blocks)


@pytest.mark.slow
@pytest.mark.parametrize("device", [SHORT, GPU])
@pytest.mark.parametrize("seed", range(3000, 3020))
def test_what_a_search_for_layouts_finds(seed: int, device: str, store: Path):
    """Every kernel and copy that it asks for can be measured, and what it comes to is right."""
    graph = random_network(seed, 6)
    network, spec = extract(optimise(graph)), opened(device).spec
    runner, records = FakeRunner(blocks_are_fast, spec), RecordStore(store)
    session = Session(list(network.tasks.values()), runner, records, settings(trials=0))
    search = LayoutSearch(session, network)
    found = search.run(lambda count: count < 100)
    search.measure(uniform_layout(network, "NCHW4c"), lambda count: count < 150)
    choice = found.layouts
    best = best_in_layouts(network, choice, records, session.conditions, spec)
    chosen = {key: candidate for key, (candidate, _) in best.items()}
    plan = build_plan(with_layouts(network, choice), chosen, spec, model_key="", notes={})
    verify_plan(plan)
    inputs = random_inputs(graph, seed)
    assert_same(Module(plan, opened(device)).run(inputs), run_graph(graph, inputs), f"seed {seed}")


def blocks_are_fast(source: ProgramSource) -> Measurement:
    """So that plans have many of them, and copies."""
    (time,) = measured(source).run_times_us
    time /= (4 if "_d3" in source.text else 1) * (9 if "T_identity" in source.text else 1)
    return succeeded([time], max_abs_err=0.0, reference_us=None, build_s=0.0, run_s=0.0)
