"""A stage set without models or devices, with the real run-once mechanism beneath.

`FakeStages.install` puts it where the Prefect tasks look for the library's stages. Every body that
really runs is written to `runs.txt` in the work folder, so tests can count executions, also those
of processes that were killed.
"""

import json
import sys
import time
import types
from pathlib import Path

import pytest

from retune.bundle.format import FORMAT, MANIFEST
from retune.core.errors import DeviceError
from retune.core.replacing import replacing
from retune.search.session import Stop, never
from retune.stages.manifest import (
    BenchManifest,
    BestRecord,
    CompileManifest,
    FinalistsManifest,
    FinishedRun,
    ImportManifest,
    Latency,
    Progress,
    ReportManifest,
    RoundManifest,
    Selection,
    SettledManifest,
    TaskEntry,
    TaskManifest,
    TaskProgress,
    TuneEvent,
    TuneRequest,
    ValueInfo,
    VerifyManifest,
)
from retune.stages.stage import run_once, stage_key

ROUNDS = 3
TASKS = tuple(
    TaskEntry(
        key=f"key{i}",
        name=f"conv{i}",
        op="conv2d",
        weight=i + 1,
        flops=1_000_000 * (i + 1),
        input_shapes=((1, 8, 8, 3), (3, 3, 3, 16)),
        output_shape=(1, 8, 8, 16),
        epilogue=("bias", "relu"),
    )
    for i in range(3)
)


class FakeStages:
    """The ten stages of `retune.api`; the round `held` lasts until it is stopped."""

    def __init__(self, *, held: int | None = None, passing_failures: int = 0) -> None:
        self.held = held
        self.passing_failures = passing_failures
        self.verified = True

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "retune.api", self.module())

    def module(self) -> types.ModuleType:
        module = types.ModuleType("retune.api")
        for name in dir(self):
            if name.startswith("stage_"):
                setattr(module, name, getattr(self, name))
        return module

    def finished(self, request: TuneRequest, selection: Selection | None = None) -> FinishedRun:
        """The manifests of a run of one round, with that selection or its own."""
        network = self.stage_import(request)
        tasks = self.stage_extract(request, network)
        last = self.stage_tune_round(request, network, tasks, ROUNDS - 1, None, lambda event: None)
        selection = selection or self.stage_select(request, tasks, FinalistsManifest())
        tuned = self.stage_compile(request, network, tasks, selection, "tuned")
        return FinishedRun(
            network=network,
            tasks=tasks,
            rounds=(last,),
            settled=self.stage_settle(request, network, tasks, selection),
            tuned=tuned,
            verified=self.stage_verify(request, network, tuned),
            bench=self.stage_bench(request, network, tuned, tuned),
        )

    def stage_import(self, request: TuneRequest) -> ImportManifest:
        def body(folder: Path) -> ImportManifest:
            ran(request, "import")
            (folder / "model.onnx").write_bytes(b"onnx")
            value = ValueInfo(name="data", dtype="float32", shape=(1, 3, 8, 8))
            return ImportManifest(
                name="fake",
                model_key="model",
                onnx="model.onnx",
                layout=request.layout,
                inputs=(value,),
                output_values=(value,),
                nodes=3,
                parameters=1000,
                flops=14_000_000,
            )

        key = stage_key("import", request.model)
        return run_once(ImportManifest, stage="import", key=key, work=work(request), body=body)

    def stage_extract(self, request: TuneRequest, network: ImportManifest) -> TaskManifest:
        def body(_folder: Path) -> TaskManifest:
            ran(request, "extract")
            return TaskManifest(model_key=network.model_key, tasks=TASKS)

        key = stage_key("extract", network.key)
        return run_once(TaskManifest, stage="extract", key=key, work=work(request), body=body)

    def stage_tune_round(
        self,
        request: TuneRequest,
        network: ImportManifest,
        tasks: TaskManifest,
        index: int,
        previous: RoundManifest | None,
        progress: Progress,
        stop: Stop = never,
    ) -> RoundManifest:
        def body(_folder: Path) -> RoundManifest:
            if self.passing_failures:
                self.passing_failures -= 1
                raise DeviceError("pocl: expected an answer, got none; try again")
            progress(TuneEvent(stage="tune", text=f"round {index}", done=index, total=ROUNDS))
            while index == self.held and not stop():
                time.sleep(0.01)
            ran(request, f"round{index}")
            done = tuple(
                TaskProgress(
                    task_key=t.key, trials=index + 1, failed=0, best_us=100.0 / (index + 1)
                )
                for t in tasks.tasks
            )
            return RoundManifest(
                index=index,
                run_id="run",
                target="fake device",
                progress=done,
                statuses=(("ok", 2), ("timeout", 1)),
                trials_done=3 * (index + 1),
                seconds_done=1.0 + index,
                finished=index + 1 == ROUNDS or stop(),
                stopped=stop(),
                reason="the budget is spent",
            )

        before = previous.key if previous else ""
        key = stage_key("round", tasks.key, request.seed, index, before)
        return run_once(RoundManifest, stage="round", key=key, work=work(request), body=body)

    def stage_finalists(
        self,
        request: TuneRequest,
        network: ImportManifest,
        last: RoundManifest,
        progress: Progress,
        stop: Stop = never,
    ) -> FinalistsManifest:
        def body(_folder: Path) -> FinalistsManifest:
            ran(request, "finalists")
            return FinalistsManifest(stopped=stop())

        key = stage_key("finalists", last.key)
        return run_once(
            FinalistsManifest, stage="finalists", key=key, work=work(request), body=body
        )

    def stage_select(
        self, request: TuneRequest, tasks: TaskManifest, finalists: FinalistsManifest
    ) -> Selection:
        best = tuple(BestRecord(task_key=t.key, record_id="r", time_us=33.0) for t in tasks.tasks)
        return Selection(target="fake device", best=best)

    def stage_settle(
        self,
        request: TuneRequest,
        network: ImportManifest,
        tasks: TaskManifest,
        selection: Selection,
    ) -> SettledManifest:
        def body(_folder: Path) -> SettledManifest:
            ran(request, "settle")
            return SettledManifest(selection=selection, ratio=0.5)

        key = stage_key("settle", network.key, selection)
        return run_once(SettledManifest, stage="settle", key=key, work=work(request), body=body)

    def stage_compile(
        self,
        request: TuneRequest,
        network: ImportManifest,
        tasks: TaskManifest,
        selection: Selection,
        variant: str,
    ) -> CompileManifest:
        def body(folder: Path) -> CompileManifest:
            ran(request, f"compile-{variant}")
            (folder / "module").mkdir()
            (folder / "module" / "module.json").write_text("{}")
            return CompileManifest(
                variant="tuned" if variant == "tuned" else "untuned",
                module="module",
                target=selection.target,
                kernels=3,
                launches=6,
                weight_bytes=4000,
                arena_bytes=2048,
                least_bytes=2048,
                from_records=len(selection.best),
                from_defaults=3 - len(selection.best),
            )

        key = stage_key("compile", network.key, selection)
        return run_once(CompileManifest, stage="compile", key=key, work=work(request), body=body)

    def stage_verify(
        self, request: TuneRequest, network: ImportManifest, compiled: CompileManifest
    ) -> VerifyManifest:
        def body(_folder: Path) -> VerifyManifest:
            ran(request, "verify")
            return VerifyManifest(
                oracle="onnxruntime",
                samples=request.samples,
                max_abs=1e-6,
                max_rel=2e-6,
                tolerance=1e-4,
                passed=self.verified,
            )

        key = stage_key("verify", network.key, compiled.key)
        return run_once(VerifyManifest, stage="verify", key=key, work=work(request), body=body)

    def stage_bench(
        self,
        request: TuneRequest,
        network: ImportManifest,
        untuned: CompileManifest,
        tuned: CompileManifest,
    ) -> BenchManifest:
        def body(_folder: Path) -> BenchManifest:
            ran(request, "bench")
            times = (("untuned", 900.0), ("tuned", 300.0), ("onnxruntime", 450.0))
            rows = tuple(
                Latency(name=name, median_us=us, p25_us=us * 0.9, p75_us=us * 1.1, runs=20)
                for name, us in times
            )
            return BenchManifest(rows=rows)

        key = stage_key("bench", untuned.key, tuned.key)
        return run_once(BenchManifest, stage="bench", key=key, work=work(request), body=body)

    def stage_report(self, request: TuneRequest, run: FinishedRun) -> ReportManifest:
        out = Path(request.out)
        bundle = json.dumps({"format": FORMAT}).encode()  # what a further run may replace
        for name, content in ((f"module/{MANIFEST}", bundle), ("report.html", b"<html>")):
            with replacing(out / name) as stream:
                stream.write(content)
        return ReportManifest(module=str(out / "module"), report=str(out / "report.html"))


def work(request: TuneRequest) -> Path:
    return Path(request.work)


def ran(request: TuneRequest, name: str) -> None:
    """Counts an execution, durably."""
    work(request).mkdir(parents=True, exist_ok=True)
    with (work(request) / "runs.txt").open("a") as runs:
        runs.write(f"{name}\n")


def runs(folder: Path) -> list[str]:
    """Names of the bodies that ran, in order."""
    path = folder / "runs.txt"
    return path.read_text().split() if path.is_file() else []
