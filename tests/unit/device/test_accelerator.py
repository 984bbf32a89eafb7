"""Candidates for the simulated accelerator: cycles if they are right, or else the reason."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.core.errors import InputError
from retune.core.target import GENERIC_CPU
from retune.device.measure.workload import MeasureOptions, Workload
from retune.device.simulated.accelerator import (
    AcceleratorRunner,
    config_named,
    config_of,
    described,
    is_accelerator,
)
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.lower import lower
from retune.targets.vta.source import PackedSource, packed_source
from retune.targets.vta.template import KNOBS
from retune.targets.vta.timing import simulate
from retune.targets.vta.workload import Convolution, requantized
from tests.support.vta_reference import reference

CONFIG = VtaConfig()
WORK = Convolution(
    c=2, h=8, w=8, o=2, kernel=(3, 3), padding=(1, 1, 1, 1), steps=requantized(8, low=0)
)


def candidate(*values: int) -> PackedSource:
    return packed_source(WORK, {n: (v,) for n, v in zip(KNOBS, values, strict=True)}, CONFIG)


GOOD = candidate(1, 4, 8, 2, 2, 1, 2)


@pytest.fixture(scope="module")
def runner() -> Iterator[AcceleratorRunner]:
    made = AcceleratorRunner(described("vta-sim", GENERIC_CPU), processes=1)
    yield made
    made.close()


def workload(key: str) -> Workload:
    rng = np.random.default_rng(1)
    shapes = WORK.shapes(CONFIG)
    arrays = {n: rng.integers(-8, 8, shapes[n][0]).astype(np.int8) for n in ("data", "weight")}
    return Workload(key=key, inputs=arrays, outputs={"output": reference(WORK, arrays)})


def measured(runner: AcceleratorRunner, work: Workload, *candidates: PackedSource):
    runner.prepare(work)
    return runner.measure(work.key, candidates, MeasureOptions())


def test_a_right_candidate_takes_the_cycles_of_its_module_each_time(runner: AcceleratorRunner):
    first, again = measured(runner, workload("right"), GOOD, GOOD)
    cycles = simulate(lower(WORK, GOOD.decisions, CONFIG)).cycles
    assert first.status == "ok"
    assert first.run_times_us == again.run_times_us == (cycles / CONFIG.board.mhz,)


def test_a_wrong_result_says_where_it_is_wrong(runner: AcceleratorRunner):
    given = workload("wrong")
    expected = given.outputs["output"].copy()
    expected.reshape(-1)[5] ^= 1
    (found,) = measured(runner, replace(given, outputs={"output": expected}), GOOD)
    assert found.status == "wrong_result"
    assert "1 of 2048 elements differ; the first is number 5" in found.error


def test_a_workload_that_is_prepared_anew_is_the_new_one(runner: AcceleratorRunner):
    given = workload("anew")
    other = replace(given, outputs={"output": given.outputs["output"] ^ 1})
    rows = [measured(runner, one, GOOD)[0] for one in (given, other, given)]
    assert [row.status for row in rows] == ["ok", "wrong_result", "ok"]
    held = [known for known in runner._children[0].holds if isinstance(known, Workload)]
    assert [known.key for known in held].count("anew") == 1


def test_a_candidate_that_does_not_fit_its_arrays_is_refused(runner: AcceleratorRunner):
    small = replace(GOOD, work=replace(WORK, c=1))
    runner.prepare(workload("fits"))
    with pytest.raises(InputError, match=r"expected 'data' of shape \(1, 1, 8, 8, 1, 16\), got"):
        runner.measure("fits", [small], MeasureOptions())


def test_what_cannot_be_lowered_or_executed_is_a_row_with_its_reason(runner: AcceleratorRunner):
    uneven = candidate(1, 3, 8, 2, 2, 1, 1)
    small = replace(
        GOOD,
        config=VtaConfig(log_inp_buff_size=8),
        decisions=candidate(1, 8, 8, 2, 2, 1, 1).decisions,
    )
    skipped, refused = measured(runner, workload("refused"), uneven, small)
    assert skipped.status == "skipped"
    assert "do not divide 8" in skipped.error
    assert refused.status == "launch_error"
    assert refused.error


def test_no_more_processes_are_started_than_measure_at_once():
    """Each of a large machine's would hold the arrays of each task, one after the other."""
    many = AcceleratorRunner(described("vta-sim", GENERIC_CPU), processes=8)
    try:
        for _ in range(3):
            assert measured(many, workload("few"), GOOD)[0].ok
        assert sum(child.pid is not None for child in many._children) == 1
    finally:
        many.close()


def test_a_description_of_somebody_else_s_is_refused():
    strange = replace(GENERIC_CPU, accelerator="npu")
    with pytest.raises(InputError, match="expected a name such as 1x16"):
        config_of(strange)


def test_only_prepared_workloads_are_measured(runner: AcceleratorRunner):
    with pytest.raises(InputError, match="'nobody' was not prepared"):
        runner.measure("nobody", [GOOD], MeasureOptions())


def test_a_variant_may_come_from_a_file(tmp_path: Path):
    """Its device is named by what the file says, so that bundles do not need it."""
    path = tmp_path / "vta_config.json"
    config = VtaConfig(target="pynq", log_wgt_buff_size=17)
    path.write_text(json.dumps({**config.to_dict(), "HW_VER": "0.0.2"}))
    spec = described(f"vta-sim:{path}", GENERIC_CPU)
    assert spec.name == "vta-sim:1x16_i8w8a32_15_15_17_17@pynq"
    assert config_of(spec) == config_named(spec.name) == config
    assert described(spec.name, GENERIC_CPU) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected a vta_config.json, got no such file"),
        ("{", "expected JSON, got text that is not"),
        ("[]", "expected an object, got"),
        ('{"LOG_BLOCKS": 4}', "no field 'LOG_BLOCKS'; there are TARGET"),
        ('{"TARGET": "versal"}', "expected target one of sim"),
    ],
)
def test_a_file_of_no_variant_is_named(text: str | None, message: str, tmp_path: Path):
    path = tmp_path / "vta_config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=f"{path}.*{message}"):
        described(f"vta-sim:{path}", GENERIC_CPU)


def test_the_name_says_the_variant():
    spec = described("vta-sim:1x16_i8w8a32_15_14_17_16", GENERIC_CPU)
    assert config_of(spec) == VtaConfig(
        log_inp_buff_size=14, log_wgt_buff_size=17, log_acc_buff_size=16
    )
    assert is_accelerator("vta-sim")
    assert not is_accelerator("pocl")
    assert config_of(GENERIC_CPU) is None
    with pytest.raises(InputError, match="expected a name such as"):
        described("vta-sim:fast", GENERIC_CPU)
