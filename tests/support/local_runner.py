"""What tests of local runner share with others."""

from collections.abc import Callable

import numpy as np

from retune.codegen.source import KernelLaunch, Packing, ProgramBuffer, ProgramSource
from retune.core.dtypes import FLOAT32
from retune.device.measure.local import MeasureOptions, Workload
from tests.support.programs import kernels_of

N = 256

X = np.random.default_rng(7).random(N, np.float32)

WEIGHT = np.random.default_rng(8).random(N, np.float32)

WORKLOAD = Workload(
    key="axpy",
    inputs={"x": X, "w": WEIGHT},
    outputs={"y": (2 * X + WEIGHT).reshape(16, 16)},
)

IMPATIENT = MeasureOptions(
    repeat=2, min_repeat_ms=0.5, build_deadline_s=4.0, run_deadline_s=3.0, disturbed_retries=0
)

RIGHT = "y[i] = 2 * x[i] + w[i];"

WRONG = "y[i] = 3 * x[i] + w[i];"

ASLEEP = r"""
#ifdef __x86_64__
  for (long number = 34; ; number = 34)  /* pause */
    __asm__ volatile("syscall" : "+a"(number) : : "rcx", "r11", "memory");
#else
  for (volatile int on = 1; on;) ;
#endif
"""
"""Statements that never end. Where the thread can wait, it takes no time of the tests beside it."""

HANG = f"{ASLEEP} y[i] = x[i] + w[i];"

CRASH = "y[i + (1L << 40)] = x[i] + w[i];"


class Reverse:
    def apply(self, array: np.ndarray) -> np.ndarray:
        return array[::-1].copy()


def plain(body: str) -> str:
    return (
        "__kernel void axpy(__global const float *x, __global const float *w, __global float *y) {"
        f"\n  int i = get_global_id(0);\n  {body}\n}}\n"
    )


def program(
    body: str,
    *,
    reverse: bool = False,
    local: int = 1,
    printed: Callable[[str], str] = plain,
) -> ProgramSource:
    text = printed(body)
    names = ("x", "w", "y")
    launch = KernelLaunch(
        kernel="axpy",
        args=names,
        writes=("y",),
        global_size=(N, 1, 1),
        local_size=(local, 1, 1),
        flops=2 * N,
        bytes=12 * N,
    )
    buffers = (
        ProgramBuffer(name="x", dtype=FLOAT32, elements=N, role="input"),
        ProgramBuffer(name="w", dtype=FLOAT32, elements=N, role="weight"),
        ProgramBuffer(name="y", dtype=FLOAT32, elements=N, role="output"),
    )
    packings = {"w": Packing(pack=Reverse(), sources=("w",))} if reverse else {}
    return ProgramSource(
        kernels=kernels_of({"axpy": text}), launches=(launch,), buffers=buffers, packings=packings
    )
