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
from retune.stages.manifest import (
    BenchManifest,
    BestRecord,
    CompileManifest,
    FinalistsManifest,
    FinishedRun,
    ImportManifest,
    Latency,
    ReportManifest,
    SearchManifest,
    Selection,
    SettledManifest,
    TaskEntry,
    TaskManifest,
    TaskProgress,
    Tuned,
    TuneEvent,
    TuneRequest,
    ValueInfo,
    VerifyManifest,
)
from retune.stages.stage import run_once, stage_key
from retune.stages.watch import stopping, tell

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
    """The ten stages of `retune.api`; the search of the task `held` lasts until it is stopped."""

    def __init__(self, *, held: str | None = None, passing_failures: int = 0) -> None:
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
        """The manifests of a run, with that selection or its own."""
        network = self.stage_import(request)
        tasks = self.stage_extract(request, network)
        searched = self.tuned([self.stage_search(request, network, tasks, t.key) for t in TASKS])
        selection = selection or self.stage_select(request, tasks, FinalistsManifest())
        tuned = self.stage_compile(request, network, tasks, selection, "tuned")
        return FinishedRun(
            network=network,
            tasks=tasks,
            searched=searched,
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

    def stage_search(
        self, request: TuneRequest, network: ImportManifest, tasks: TaskManifest, task_key: str
    ) -> SearchManifest:
        def body(_folder: Path) -> SearchManifest:
            if self.passing_failures:
                self.passing_failures -= 1
                raise DeviceError("pocl: expected an answer, got none; try again")
            tell(TuneEvent(stage="tune", text=f"search of {task_key}", done=1, total=len(TASKS)))
            while task_key == self.held and not stopping():
                time.sleep(0.01)
            ran(request, f"search-{task_key}")
            return SearchManifest(
                run_id="run",
                target="fake device",
                progress=TaskProgress(task_key=task_key, trials=3, failed=1, best_us=33.0),
                statuses=(("ok", 2), ("timeout", 1)),
                trials_done=3 * len(TASKS),
                seconds_done=3.0,
                reason="the budget is spent",
                stopped=stopping(),
            )

        key = stage_key("tune", tasks.key, request.seed, task_key)
        return run_once(SearchManifest, stage="tune", key=key, work=work(request), body=body)

    def tuned(self, searches: list[SearchManifest]) -> Tuned:
        return Tuned(
            run_id="run",
            target="fake device",
            progress=tuple(search.progress for search in searches),
            statuses=(("ok", 2 * len(searches)), ("timeout", len(searches))),
            trials_done=3 * len(searches),
            seconds_done=3.0,
            reason="the budget is spent",
        )

    def stage_finalists(
        self, request: TuneRequest, network: ImportManifest, tuned: Tuned
    ) -> FinalistsManifest:
        def body(_folder: Path) -> FinalistsManifest:
            ran(request, "finalists")
            return FinalistsManifest(stopped=stopping())

        key = stage_key("finalists", tuned.run_id)
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
