"""A network tuned for the simulated accelerator: packed, searched, compiled, run, and exact."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import retune.api
from retune.bundle.build import build_plan
from retune.bundle.format import read_bundle
from retune.bundle.plan import RECIPE_NOTE
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions
from retune.bundle.verify.by_parts import PartValue
from retune.bundle.verify.compare import compare
from retune.bundle.verify.packed_parts import packed_parts
from retune.core.errors import InputError, RecordError
from retune.core.schema import from_json
from retune.device.measure.workload import MeasureOptions
from retune.device.opening import open_device, open_runner
from retune.frontend.onnx.importer import import_model, load_file
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.recipe import Recipe, quantize, quantized
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from retune.ops.blocked import blocked_conv2d
from retune.pipeline import delivery, validation
from retune.pipeline.network import open_network, stage_extract, stage_import
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneResult
from retune.pipeline.selection import selected_candidates, stage_choose
from retune.records.schema import succeeded
from retune.records.store import RecordStore
from retune.search.extract import extract
from retune.search.session import RunSettings, Session
from retune.targets.cost.estimate import default_candidate
from retune.targets.devices import target_of
from retune.targets.vta.blocks import pack
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.packed import packed_network
from tests.support.device_networks import Net


def three_layers(path: Path) -> Path:
    """A convolution in floats, a pool, two packed ones with a residual sum, a mean, and scores."""
    n = Net("three")
    x = n("Relu", n.conv(n.input(1, 3, 16, 16), 3, 20))
    x = n("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    y = n("Relu", n.conv(x, 20, 20))
    x = n("Relu", n("Add", n.conv(y, 20, 20), x))
    x = n("Flatten", n("GlobalAveragePool", x))
    onnx.save(n.model(n("Gemm", x, n.weight(10, 20), n.weight(10), transB=1)), path)
    return path


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    folder = tmp_path_factory.mktemp("accelerated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETUNE_CACHE", str(folder / "cache"))
        quick = BenchOptions(budget_s=0.1, min_rounds=2, settle_s=0.0)
        patch.setattr(validation, "_COMPARE", quick)
        patch.setattr(delivery, "_BENCH_SECONDS", 0.1)
        return retune.api.tune_network(
            str(three_layers(folder / "three.onnx")),
            folder / "build",
            device="vta-sim",
            trials=12,
            records=folder / "records",
            quantize=POWER2,
        )


def test_the_bundle_is_exact_and_its_accelerator_steps_are_files(tuned: TuneResult):
    assert tuned.verified.max_rel == 0
    folder = Path(tuned.module)
    plan = read_bundle(folder)
    assert [host.engine for host in plan.hosts] == ["vta", "vta"]
    assert plan.simulated_s > 0
    assert {path.name for path in folder.glob("*.vta")} == {"host0.vta", "host1.vta"}


def test_steps_on_the_accelerator_are_bit_exact_on_what_they_read(tuned: TuneResult):
    module = Module.load(tuned.module)
    _, runs = module.observe(module.random_inputs(7))
    first, second = runs
    np.testing.assert_array_equal(second.inputs[0], first.outputs[0])
    assert len(second.inputs) == 4  # the residual sum is part of it
    for run in runs:
        assert run.seconds == run.step.simulated_s
        assert run.outputs[0].any()
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "min": 0, "max": 127}
    exact = [blocked_conv2d(first.inputs, {**attrs, "shift": shift})[0] for shift in range(5, 14)]
    assert any(np.array_equal(first.outputs[0], made) for made in exact)


def test_the_report_says_what_is_simulated_and_shows_the_queues(tuned: TuneResult):
    page = Path(tuned.report).read_text(encoding="utf-8")
    assert "2 steps, simulated" in page
    assert "on the accelerator, simulated" in page
    assert "queues of" in page


def test_records_have_cycles_and_settings_of_their_own(tuned: TuneResult):
    rows = RecordStore(tuned.records).scan({})
    assert len(rows) == 12
    assert set(rows["status"]) == {"ok"}
    assert set(rows["op"]) == {"conv2d_packed"}
    assert {dict(knobs).keys() >= {"tile_h", "oc_nthread"} for knobs in rows["knobs"]} == {True}


def test_each_variant_has_tasks_of_its_own(tuned: TuneResult):
    """One network, one cache, one recipe but for what is too narrow to pack: other blocks."""
    found: dict[str, set[str]] = {}
    for device in ("vta-sim", "vta-sim:1x4_i8w8a32_10_10_12_12", "vta-sim:1x2_i8w8a32_9_8_9_10"):
        request = TuneRequest(
            model=tuned.model,
            out="",
            records=tuned.records,
            work=str(Path(tuned.records).parent / "cache"),
            device=device,
            quantize=POWER2,
        )
        listed = {task.key for task in stage_extract(request, stage_import(request)).tasks}
        assert listed == set(open_network(request).network.tasks)
        found[device] = {*listed}
    assert len(set(map(frozenset, found.values()))) == 3


def test_kernels_beside_it_have_the_best_schedules_that_are_known_for_the_device(tuned: TuneResult):
    """They are no tasks of this run; records of another network, with other constants, count."""
    work = Path(tuned.records).parent / "cache"
    request = TuneRequest(
        model=tuned.model,
        out="",
        records=tuned.records,
        work=str(work),
        device="vta-sim",
        trials=12,
        quantize=POWER2,
    )
    network = open_network(request).network
    beside, *_ = (task for task in network.tasks.values() if not task.searched and task.reduces)
    listed = stage_extract(request, stage_import(request))
    before = stage_choose(request, listed)
    assert beside.key not in {best.task_key for best in before.best}
    store = RecordStore(tuned.records)
    settings = RunSettings(run_id="elsewhere", model="another", layout="NHWC")
    with closing(open_runner("pocl")) as runner:
        session = Session([replace(beside, searched=True)], runner, store, settings)
        space = beside.space(session.spec)
        slow, fast = (space.candidate(space.sample(9, np.random.default_rng(0)), i) for i in (2, 5))
        for candidate, time_us in ((slow, 9.0), (fast, 7.0)):
            measured = succeeded([time_us], max_abs_err=0.0, reference_us=1.0, build_s=0, run_s=0)
            store.append([session.record_of(beside, space, candidate, measured)])
    after = stage_choose(request, listed)
    assert [best for best in after.best if best.task_key != beside.key] == list(before.best)
    assert selected_candidates(request, after)[beside.key] == fast


def test_rows_of_dense_layers_go_to_the_accelerator_and_back():
    """An image is flattened, two layers of rows follow, one of them on the accelerator."""
    n = Net("classifier")
    x = n(
        "MaxPool",
        n("Relu", n.conv(n.input(1, 3, 8, 8), 3, 20)),
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    x = n("Flatten", n("Relu", n.conv(x, 20, 20)))
    x = n("Relu", n("Gemm", x, n.weight(64, 320), n.weight(64), transB=1))
    graph = import_model(n.model(n("Gemm", x, n.weight(10, 64), n.weight(10), transB=1)))
    data = {"x0": np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)}
    settings = replace(POWER2, skip_conv_layers=(0,), bias_correction=False, method="minmax")
    packed = optimise(packed_network(quantize(graph, data, settings), VtaConfig()), "NHWC")
    device = open_device("vta-sim")
    network = extract(packed, accelerator=VtaConfig())
    plan = build_plan(network, {}, device.spec, model_key="", notes={})
    assert [host.engine for host in plan.hosts] == ["vta", "vta"]
    expected = run_graph(packed, data)
    for name, array in Module(plan, device).run(data).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6)


def test_images_in_blocks_of_two_go_to_the_accelerator_and_back(tmp_path: Path):
    """A variant that takes two rows at once has biases for both."""
    config = VtaConfig(log_batch=1, log_inp_buff_size=15, log_acc_buff_size=17)
    model = onnx.load(three_layers(tmp_path / "three.onnx"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 4
    graph = import_model(model)
    data = {"x0": np.random.default_rng(0).standard_normal((4, 3, 16, 16), np.float32)}
    settings = replace(POWER2, skip_conv_layers=(0,), bias_correction=False, method="minmax")
    packed = optimise(packed_network(quantize(graph, data, settings), config), "NHWC")
    device = open_device(f"vta-sim:{config.name}")
    network = extract(packed, accelerator=config)
    with closing(open_runner(device.spec.name)) as runner:
        for task in (task for task in network.tasks.values() if task.packed is not None):
            workload, space = task.workload(), task.space(device.spec)
            runner.prepare(workload)
            source = task.source(
                space, default_candidate(space, device.spec), target_of(device.spec)
            )
            (row,) = runner.submit(workload.key, [source], MeasureOptions()).result()
            assert row.ok, row.error
    plan = build_plan(network, {}, device.spec, model_key="", notes={})
    assert [host.engine for host in plan.hosts] == ["vta", "vta"]
    expected = run_graph(packed, data)
    for name, array in Module(plan, device).run(data).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6)


def test_a_damaged_module_is_refused_by_name(tuned: TuneResult, tmp_path: Path):
    copy = tmp_path / "module"
    copy.mkdir()
    for path in Path(tuned.module).iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    whole = bytearray((copy / "host1.vta").read_bytes())
    whole[100] ^= 1
    (copy / "host1.vta").write_bytes(whole)
    with pytest.raises(RecordError, match=r"host1\.vta"):
        read_bundle(copy)


@pytest.mark.parametrize("quantize", [None, QuantizeSettings()])
def test_only_networks_of_powers_of_two_are_taken(quantize, tmp_path: Path):
    with pytest.raises(InputError, match="expected quantize power2"):
        retune.api.tune_network(
            str(three_layers(tmp_path / "three.onnx")),
            tmp_path / "build",
            device="vta-sim",
            trials=1,
            quantize=quantize,
            calibration="random" if quantize else "",
        )


def parts(tuned: TuneResult, module: object) -> list[PartValue]:
    """The parts of the network on some inputs, with numpy's beside them."""
    plan = read_bundle(Path(tuned.module))
    recipe = from_json(Recipe, plan.notes[RECIPE_NOTE])
    graph = optimise(pack(quantized(load_file(Path(tuned.model), {}), recipe)), "NHWC")
    inputs = Module.load(tuned.module).random_inputs(3)
    return list(packed_parts(module, graph)(inputs, {}))


class Spoiled:
    """The module, whose first accelerator step makes one code that is one off."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def observe(self, inputs: dict[str, np.ndarray]):
        outputs, (first, *rest) = self._module.observe(inputs)
        made = first.outputs[0].copy()
        made.reshape(-1)[0] ^= 1
        return outputs, (replace(first, outputs=(made,)), *rest)


def test_each_part_is_judged_by_what_it_read(tuned: TuneResult):
    module = Module.load(tuned.module)
    right, wrong = parts(tuned, module), parts(tuned, Spoiled(module))
    assert len(right) == 3 + 1 + 4 + 1 + 1  # read and made by both steps, and the scores
    assert max(compare(p.name, p.got, p.expected).max_rel_range for p in right) < 1e-5
    assert max(compare(p.name, p.got, p.expected).max_rel_range for p in wrong) == np.inf
