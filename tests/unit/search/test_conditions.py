"""How much of a network is measured at once."""

import os
from dataclasses import replace

import pytest

from retune.core.target import GENERIC_CPU
from retune.search.conditions import usual_batch
from retune.search.task_schedulers import ROUND

GPU = replace(GENERIC_CPU, device_class="gpu")


@pytest.mark.parametrize(("allowed", "expected"), [(2, ROUND), (8, 16), (16, 32), (64, 32)])
def test_batches_of_a_gpu_are_what_the_cores_of_this_process_build_side_by_side(
    allowed: int, expected: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert usual_batch(GPU) == expected
    assert usual_batch(GENERIC_CPU) == ROUND
