"""What tests of gpu share with others."""

from dataclasses import replace
from itertools import product
from math import prod

import pytest

from retune.codegen.lower import lower
from retune.codegen.target import GPU
from retune.core.dtypes import itemsize
from retune.core.target import GENERIC_GPU, DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.stmt import Program, blocks

WITHOUT_LOCAL_MEMORY = replace(
    GENERIC_GPU, name="mali", vector_bits=128, compute_units=4, local_memory_bytes=0,
    max_work_group=256,
)  # fmt: skip

TYPICAL = {(1, 0), (64, 1 << 10), (128, 32 << 10), (256, 0), (1024, 1 << 10)}

LIMITS = list(product([1, 64, 128, 256, 1024], [0, 1 << 10, 32 << 10]))
"""Most work-items of a group, and bytes of local memory."""
SMALL = [
    pytest.param(*limits, marks=() if limits in TYPICAL else pytest.mark.slow) for limits in LIMITS
]


def assert_within_limits(program: Program, spec: DeviceSpec) -> None:
    """Each kernel of the program may be started on the device."""
    for launch in lower(program, GPU).launches:
        assert prod(launch.local_size) <= spec.max_work_group
        groups = [n // m for n, m in zip(launch.global_size, launch.local_size, strict=True)]
        assert max(groups[1:]) <= 65_535 and launch.local_size[2] <= 64
    for root in program.body.stmts:
        local = {b.buffer for b in blocks(root) if b.buffer.scope == "local"}
        held = sum(itemsize(b.dtype) * prod(evaluate_int(e) for e in b.shape) for b in local)
        assert held <= spec.local_memory_bytes
