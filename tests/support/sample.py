"""A made-up run, for tests of the report and for looking at its page."""

from dataclasses import replace

import numpy as np

from retune.core.results import KernelTime, Latency, TaskEntry, TaskResult, VerifyResult
from retune.report.data import (
    LayerDetail,
    LayerGroup,
    LayerKernel,
    ReportCurve,
    ReportData,
    TriedStrategy,
)


def sample(tasks: int = 12, seed: int = 0) -> ReportData:
    """A run with that many tasks; the last task has no right candidate."""
    rng = np.random.default_rng(seed)
    entries, curves = [], []
    for i in range(tasks):
        flops = int(rng.integers(5, 400)) * 1_000_000
        default = flops / 20e3
        times = [
            None if rng.random() < 0.1 else float(default * rng.lognormal(-0.3 - 0.01 * k, 0.7))
            for k in range(48)
        ]
        if i == tasks - 1:
            times = [None] * 5
        right = [t for t in times if t is not None]
        side = int(rng.choice([7, 14, 28, 56, 112]))
        entries.append(
            TaskResult(
                entry=TaskEntry(
                    key=f"key{i}",
                    name=f"fire{i}/conv{i % 3 + 1}x{i % 3 + 1}",
                    op="conv2d",
                    epilogue=("bias", "relu"),
                    input_shapes=(),
                    output_shape=(1, side, side, 64),
                    weight=1 + i % 3,
                    flops=flops,
                ),
                trials=len(times),
                failed=len(times) - len(right),
                default_us=default,
                best_us=min(right) if right else None,
            )
        )
        curves.append(ReportCurve(task=entries[-1].entry.name, times_us=tuple(times)))
    return ReportData(
        network="light_squeezenet",
        target="cpu with <two> cores | PoCL 3.0",
        created="2026-01-31 12:00 UTC",
        tasks=tuple(entries),
        curves=tuple(curves),
        failures=(("ok", 510), ("wrong_result", 12), ("compile_error", 9), ("timeout", 3)),
        latency=(
            Latency(name="untuned", median_us=31_500, p25_us=31_000, p75_us=33_000, runs=50),
            Latency(name="tuned", median_us=5_120, p25_us=5_050, p75_us=5_400, runs=50),
            Latency(name="onnxruntime", median_us=6_900, p25_us=6_700, p75_us=7_600, runs=50),
        ),
        profile=tuple(
            KernelTime(
                label=e.entry.name, kernel="", us=e.best_us or 3.0, flops=e.entry.flops, bytes=0
            )
            for e in entries
        ),
        verification=VerifyResult(
            oracle="onnxruntime",
            samples=2,
            max_abs=3.1e-6,
            max_rel=1.2e-6,
            tolerance=1e-4,
            passed=True,
        ),
        facts=(
            ("model", "light:squeezenet"),
            ("seed", "0"),
            ("bundle", "artifacts/squeezenet/module"),
            ("weights", "4.7 MiB"),
        ),
    )


def detailed(data: ReportData, factor: float = 1.0) -> ReportData:
    """The report with details of its layers; times in the bundle are `factor` of the records'."""
    details = tuple(
        LayerDetail(
            task_key=task.entry.key,
            groups=(LayerGroup(name=task.entry.name, nodes=("Conv <first>", "Relu second")),),
            chosen=(("compiled from", "record 17"), ("strategy", "cpu.tiles")),
            schedule="s.split(...)",
            kernels=(LayerKernel(name="k", launch="8 x 1", text="if (a < b) x += y;"),),
            tried=(TriedStrategy(strategy="cpu.tiles", measured=9, failed=2, best_us=3.0),),
            measured_us=factor * task.best_us if task.best_us else None,
        )
        for task in data.tasks
    )
    return replace(data, details=details)
