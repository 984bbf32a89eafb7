"""The arithmetic of measuring, with invented clocks."""

from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.source import ProgramSource
from retune.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, UINT8, DType, numpy_dtype
from retune.core.errors import InputError
from retune.device.measure.contention import Took
from retune.device.measure.messages import Timed
from retune.device.measure.timing import (
    Deviation,
    ExpectedOutputs,
    check_deadline_s,
    disturbance,
    present_us,
    time_deadline_s,
    time_repeats,
)
from retune.device.measure.workload import MeasureOptions
from retune.records.cost import NOMINAL_US
from tests.support.measure import program

OPTIONS = MeasureOptions(repeat=3, min_repeat_ms=10.0)


class Kernel:
    """A kernel that takes the same time in every call."""

    def __init__(self, call_us: float) -> None:
        self.call_us = call_us
        self.rounds: list[int] = []
        self.pauses = 0

    def run(self, number: int) -> Took:
        self.rounds.append(number)
        return Took(seconds=number * self.call_us * 1e-6)

    def pause(self) -> None:
        self.pauses += 1


def times(kernel: Kernel, options: MeasureOptions, best_us: float | None = None):
    return time_repeats(kernel.run, options, best_us, kernel.pause)


def test_each_repeat_lasts_long_enough():
    kernel = Kernel(5.0)
    assert times(kernel, OPTIONS) == pytest.approx((5.0, 5.0, 5.0))
    assert kernel.rounds[-3:] == [kernel.rounds[-1]] * 3
    assert kernel.rounds[-1] * 5.0 >= 10_000


def test_a_long_kernel_is_called_once_in_each_repeat():
    kernel = Kernel(50_000.0)
    times(kernel, OPTIONS)
    assert kernel.rounds == [1, 1, 1]
    assert kernel.pauses == 3


def test_number_is_the_least_count():
    kernel = Kernel(50_000.0)
    times(kernel, replace(OPTIONS, number=4))
    assert kernel.rounds == [4, 4, 4]


def test_a_cache_flush_leaves_one_call_in_each_repeat():
    kernel = Kernel(5.0)
    assert len(times(kernel, replace(OPTIONS, cache_flush=True, number=7))) == 3
    assert kernel.rounds == [1, 1, 1]


def test_a_hopeless_candidate_is_let_go_after_one_repeat():
    assert len(times(Kernel(501.0), OPTIONS, best_us=100.0)) == 1
    assert len(times(Kernel(499.0), OPTIONS, best_us=100.0)) == 3
    never = replace(OPTIONS, give_up_factor=None)
    assert len(times(Kernel(5000.0), never, best_us=1.0)) == 3


def test_a_clock_that_reads_zero_ends():
    still = Took(seconds=0.0)
    assert time_repeats(lambda number: still, OPTIONS, None, lambda: None) == (0.0, 0.0, 0.0)


def test_repeats_that_others_disturb_are_made_again():
    each = iter([(50, True), (10, False), (90, True), (11, False), (12, False)])

    def run(number: int) -> Took:
        milliseconds, disturbed = next(each)
        return Took(seconds=1e-3 * milliseconds, disturbed=disturbed)

    pauses: list[int] = []
    found = time_repeats(run, OPTIONS, None, lambda: pauses.append(1))
    assert found == pytest.approx((10_000, 11_000, 12_000))
    assert len(pauses) == 5, "each has its pause"


def outputs(*values: float) -> dict[str, np.ndarray]:
    return {"y": np.array(values, np.float32).reshape(1, -1)}


def expected(arrays: dict[str, np.ndarray], rtol: float, atol: float) -> ExpectedOutputs:
    return ExpectedOutputs.of(arrays, rtol, atol)


def test_equal_outputs_deviate_by_nothing():
    found = expected(outputs(1, 2, 3), 0.0, 0.0).deviation(outputs(1, 2, 3))
    assert (found.largest, found.problem) == (0.0, "")


def test_tolerance_follows_the_references_range():
    assert not expected(outputs(0, 1000), 1e-4, 0.0).deviation(outputs(0.05, 1000)).problem
    assert expected(outputs(0, 1000), 1e-4, 0.0).deviation(outputs(0.2, 1000)).problem


def test_the_worst_element_is_named():
    found = expected(outputs(1, 2, 3), 1e-3, 0.0).deviation(outputs(1, 5, 3.5))
    assert found.largest == 3.0
    assert "output 'y' at [0, 1]: expected 2, got 5" in found.problem
    assert "2 of 3 elements are off" in found.problem


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_is_infinitely_wrong(value: float):
    found = expected(outputs(1, 2), 1e9, 1e9).deviation(outputs(1, value))
    assert found.largest == np.inf
    assert "at [0, 1]" in found.problem


def test_infinities_of_the_reference_may_be_matched():
    same = outputs(1, np.nan, np.inf)
    assert not expected(same, 1e-4, 0.0).deviation(same).problem
    assert expected(same, 1e-4, 0.0).deviation(outputs(1, np.nan, -np.inf)).problem


def test_flat_results_are_compared_with_shaped_references():
    flat = {"y": np.arange(6, dtype=np.int32)}
    assert not expected({"y": np.arange(6).reshape(2, 3)}, 0.0, 0.0).deviation(flat).problem


def test_disturbance_is_symmetric():
    fast, slow = Timed(times_us=(1.0,), before_us=100, after_us=150), (150, 100)
    assert disturbance(fast) == 1.5
    assert disturbance(replace(fast, before_us=slow[0], after_us=slow[1])) == 1.5
    assert disturbance(replace(fast, before_us=0.0)) == float("inf")


def test_deadlines_grow_with_the_work():
    small = ProgramSource(kernels=(), launches=(), buffers=())
    launch = replace(program().launches[0], flops=10**10)
    large = replace(small, launches=(launch,))
    assert check_deadline_s(small, OPTIONS) == OPTIONS.run_deadline_s
    assert check_deadline_s(large, OPTIONS) == OPTIONS.run_deadline_s + 100
    assert time_deadline_s(1.0, OPTIONS) > 2 * time_deadline_s(0.001, OPTIONS)


def test_options_that_measure_nothing_are_refused():
    with pytest.raises(InputError, match="repeat: expected a positive number, got 0"):
        MeasureOptions(repeat=0)


def test_a_cost_is_a_time_at_the_present_pace():
    assert present_us(None, 700.0, 700.0) is None
    assert present_us(10.0, 2 * NOMINAL_US, None) == pytest.approx(20.0)
    assert present_us(10.0, 2 * NOMINAL_US, NOMINAL_US) == pytest.approx(11.5)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT32, UINT8])
def test_an_output_of_many_elements_is_compared_to_its_last_one(dtype: DType):
    """Whatever the type, and where several parts are compared one after the other."""
    right = np.arange(1_000_000).reshape(2, -1) % 100
    wrong = right.copy()
    wrong[1, -1] += 7
    reference = expected({"y": right.astype(np.float64)}, 0.05, 0.0)
    assert reference.deviation({"y": right.astype(numpy_dtype(dtype))}) == Deviation(
        largest=0.0, problem=""
    )
    found = reference.deviation({"y": wrong.astype(numpy_dtype(dtype))})
    assert found.largest == 7.0
    assert f"at [1, {500_000 - 1}]: expected 99, got 106" in found.problem


def test_the_output_that_is_furthest_beyond_its_tolerance_is_named():
    reference = expected({"small": np.ones(3), "large": np.full(3, 1e3)}, 1e-2, 0.0)
    found = reference.deviation({"small": np.full(3, 1.5), "large": np.full(3, 1e3 + 100)})
    assert found.largest == 100.0
    assert "output 'small'" in found.problem


@pytest.mark.parametrize("size", [1000, 1_000_000])
def test_nan_is_found_wherever_it_is(size: int):
    right = np.ones(size, np.float32)
    for index in (0, size // 2, size - 1):
        wrong = right.copy()
        wrong[index] = np.nan
        found = expected({"y": right}, 1e-4, 0.0).deviation({"y": wrong})
        assert found.largest == np.inf
        assert f"at [{index}]" in found.problem
