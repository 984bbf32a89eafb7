"""A generator of images by transposed convolutions on the simulated accelerator."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import retune.api
from retune.bundle.build import build_plan
from retune.bundle.format import read_bundle
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions
from retune.bundle.verify.compare import compare
from retune.bundle.verify.packed_parts import packed_parts
from retune.device.opening import open_device
from retune.frontend.onnx.importer import import_model
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import POWER2
from retune.pipeline import delivery, validation
from retune.records.store import RecordStore
from retune.report.vta import Layer, roofline_chart
from retune.search.extract import extract
from retune.targets.vta.assembly import disassemble
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.module import VtaModule
from retune.targets.vta.packed import packed_network
from retune.targets.vta.timing import simulate
from tests.support.device_networks import Net
from tests.support.vta_assembly import assemble


def generator() -> onnx.ModelProto:
    """As a DCGAN: a code, a dense layer, and four transposed convolutions, with their norms."""
    n = Net("generator")
    x = n("Gemm", n.input(1, 24), n.weight(64 * 9, 24), n.weight(64 * 9), transB=1)
    x = n("Relu", n.norm(n("Reshape", x, n.ints(1, 64, 3, 3)), 64))
    for deep, made in ((64, 48), (48, 32)):
        x = n("Relu", n.norm(n.transposed(x, deep, made), made))
    x = n("Relu", n.transposed(x, 32, 32, (3, 3), output_padding=[1, 1]))
    return n.model(n("Tanh", n.transposed(x, 32, 3)))


@pytest.fixture(scope="module")
def packed() -> Graph:
    graph = import_model(generator())
    data = {name: np.zeros(graph.types[name].shape, np.float32) for name in graph.inputs}
    whole = quantize(graph, data, replace(POWER2, bias_correction=False))
    return optimise(packed_network(whole, VtaConfig()), "NHWC")


@pytest.fixture(scope="module")
def module(packed: Graph) -> Module:
    device = open_device("vta-sim")
    network = extract(packed, accelerator=VtaConfig())
    names = [task.name for task in network.tasks.values() if task.tunable]
    assert sum("transpose" in name for name in names) == 3
    return Module(build_plan(network, {}, device.spec, model_key="", notes={}), device)


def test_each_step_is_exact_on_what_it_read(packed: Graph, module: Module):
    """The last layer is read as floats, and is none of the accelerator's."""
    assert [host.engine for host in module.plan.hosts] == ["vta"] * 4
    found = packed_parts(module, packed)(module.random_inputs(3), {})
    assert any(len(np.unique(part.got)) > 50 for part in found)
    assert max(compare(p.name, p.got, p.expected).max_rel_range for p in found) < 1e-5


def test_steps_are_streams_that_can_be_written_down_and_read_again(module: Module):
    config, layers = VtaConfig(), list[Layer]()
    for host in module.plan.hosts:
        stream = VtaModule.from_bytes(host.model)
        again = assemble(disassemble(stream.instructions))
        np.testing.assert_array_equal(again, stream.instructions)
        timing = simulate(stream)
        assert 0 < timing.gops < config.peak_gops
        layers.append(Layer.of(timing))
    assert all(layer.name in roofline_chart(layers, config) for layer in layers)


@pytest.mark.slow
def test_a_generator_is_tuned_to_a_bundle_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RETUNE_CACHE", str(tmp_path / "cache"))
    quick = BenchOptions(budget_s=0.1, min_rounds=2, settle_s=0.0)
    monkeypatch.setattr(validation, "_COMPARE", quick)
    monkeypatch.setattr(delivery, "_BENCH_SECONDS", 0.1)
    onnx.save(generator(), tmp_path / "generator.onnx")
    made = retune.api.tune_network(
        str(tmp_path / "generator.onnx"),
        tmp_path / "build",
        device="vta-sim",
        trials=48,
        records=tmp_path / "records",
        quantize=POWER2,
    )
    assert made.verified.max_rel < 1e-6  # tanh is in floats, all before it is exact
    assert read_bundle(Path(made.module)).simulated_s > 0
    rows = RecordStore(made.records).scan({})
    assert set(rows["status"]) == {"ok"}
    assert sum("transpose" in str(name) for name in set(rows["task_name"])) == 3
    assert "4 steps, simulated" in Path(made.report).read_text(encoding="utf-8")
