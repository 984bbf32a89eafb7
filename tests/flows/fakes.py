"""Stand-in stages without models or devices, with the real chain and run-once mechanism around.

`FakeStages.install` puts them where the chain looks for its stages. Every body that really runs is
written to `runs.txt` in the work folder, so tests can count executions, also those of processes
that were killed.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from retune.bundle.format import FORMAT, MANIFEST
from retune.core.errors import DeviceError, InputError
from retune.core.replacing import replacing
from retune.core.results import Latency, TaskEntry, TaskResult
from retune.core.target import GENERIC_CPU
from retune.pipeline import chain
from retune.pipeline.layout_manifest import LayoutManifest
from retune.pipeline.manifest import (
    BenchManifest,
    BestRecord,
    CompileManifest,
    Constraints,
    ImportManifest,
    PublishedManifest,
    Selection,
    TaskManifest,
    TunedTasks,
    TuneManifest,
    ValueInfo,
    VerifyManifest,
)
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun, TuneEvent
from retune.pipeline.stage import run_once, stage_key
from retune.pipeline.watch import stopping, tell

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
    """The stages of the chain; the search of the task `held` lasts until it is stopped."""

    def __init__(
        self, *, held: str | None = None, passing_failures: int = 0, broken: str | None = None
    ) -> None:
        """`broken` is the task whose search always fails."""
        self.held = held
        self.passing_failures = passing_failures
        self.broken = broken
        self.verified = True

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The chain calls these stages."""
        for name in (name for name in dir(self) if name.startswith("stage_")):
            monkeypatch.setattr(chain, name, getattr(self, name))
        monkeypatch.setattr(chain, "spec_of", lambda name: GENERIC_CPU)
        monkeypatch.setattr(chain, "run_id", lambda *_: "run")
        monkeypatch.setattr(chain, "join_tuned", self.joined)

    def as_tasks(self) -> None:
        """Each of these stages has a Prefect task."""
        from retune.prefect.stage_task import stage_task

        for name in (name for name in dir(self) if name.startswith("stage_")):
            short = name.removeprefix("stage_")
            named = (lambda given: f"tune {given['task_key']}") if short == "tune" else None
            stage_task(getattr(self, name), short, run_name=named)

    def finished(self, request: TuneRequest, selection: Selection | None = None) -> FinishedRun:
        """The manifests of a run, with that selection or its own."""
        network = self.stage_import(request)
        tasks = self.stage_extract(request, network)
        found = {t.key: self.stage_tune(request, network, tasks, t.key) for t in TASKS}
        searched = self.joined(request, network, tasks, found)
        selection = selection or self.stage_choose(request, tasks, Constraints())
        tuned = self.stage_compile(request, network, tasks, selection, "tuned")
        return FinishedRun(
            network=network,
            tasks=tasks,
            searched=searched,
            chosen=(selection,),
            constraints=self.stage_compare(request, network, tasks, selection, Constraints()),
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
                model_key="model",
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

    def stage_tune(
        self, request: TuneRequest, network: ImportManifest, tasks: TaskManifest, task_key: str
    ) -> TuneManifest:
        def body(_folder: Path) -> TuneManifest:
            if self.passing_failures:
                self.passing_failures -= 1
                raise DeviceError("pocl: expected an answer, got none; try again")
            if task_key == self.broken:
                raise InputError(f"{task_key}: expected a kernel, got nonsense")
            tell(TuneEvent(stage="tune", text=f"search of {task_key}", done=1, total=len(TASKS)))
            while task_key == self.held and not stopping():
                time.sleep(0.01)
            ran(request, f"search-{task_key}")
            return TuneManifest(
                run_id="run",
                target="fake device",
                result=TaskResult(entry=tasks.entry(task_key), trials=3, failed=1, best_us=33.0),
                statuses=(("ok", 2), ("timeout", 1)),
                trials_done=3 * len(TASKS),
                seconds_done=3.0,
                reason="the budget is spent",
                stopped=stopping(),
            )

        key = stage_key("tune", tasks.key, request.seed, task_key)
        return run_once(TuneManifest, stage="tune", key=key, work=work(request), body=body)

    def joined(
        self,
        request: TuneRequest,
        network: ImportManifest,
        tasks: TaskManifest,
        found: Mapping[str, TuneManifest | Exception],
    ) -> TunedTasks:
        searches = [each for each in found.values() if isinstance(each, TuneManifest)]
        return TunedTasks(
            run_id="run",
            target="fake device",
            results=tuple(search.result for search in searches),
            statuses=(("ok", 2 * len(searches)), ("timeout", len(searches))),
            trials_done=3 * len(searches),
            seconds_done=3.0,
            reason="the budget is spent",
            failed=tuple((k, str(e)) for k, e in found.items() if isinstance(e, Exception)),
        )

    def stage_finalists(
        self,
        request: TuneRequest,
        network: ImportManifest,
        tuned: TunedTasks,
        layouts: LayoutManifest,
    ) -> Constraints:
        def body(_folder: Path) -> Constraints:
            ran(request, "finalists")
            return Constraints(stopped=stopping())

        key = stage_key("finalists", tuned.run_id)
        return run_once(Constraints, stage="finalists", key=key, work=work(request), body=body)

    def stage_choose(
        self, request: TuneRequest, tasks: TaskManifest, constraints: Constraints
    ) -> Selection:
        best = tuple(BestRecord(task_key=t.key, record_id="r", time_us=33.0) for t in tasks.tasks)
        return Selection(target="fake device", best=best)

    def stage_validate(
        self,
        request: TuneRequest,
        network: ImportManifest,
        tasks: TaskManifest,
        selection: Selection,
        constraints: Constraints,
    ) -> Constraints:
        def body(_folder: Path) -> Constraints:
            ran(request, "validate")
            return constraints.content

        key = stage_key("validate", network.key, selection)
        return run_once(Constraints, stage="validate", key=key, work=work(request), body=body)

    def stage_compare(
        self,
        request: TuneRequest,
        network: ImportManifest,
        tasks: TaskManifest,
        selection: Selection,
        constraints: Constraints,
    ) -> Constraints:
        def body(_folder: Path) -> Constraints:
            ran(request, "compare")
            return replace(constraints.content, ratio=0.5)

        key = stage_key("compare", network.key, selection)
        return run_once(Constraints, stage="compare", key=key, work=work(request), body=body)

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
        alone: Sequence[CompileManifest] = (),
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

    def stage_report(self, request: TuneRequest, run: FinishedRun) -> PublishedManifest:
        out = Path(request.out)
        bundle = json.dumps({"format": FORMAT}).encode()  # what a further run may replace
        for name, content in ((f"module/{MANIFEST}", bundle), ("report.html", b"<html>")):
            with replacing(out / name) as stream:
                stream.write(content)
        return PublishedManifest(
            module=str(out / "module"),
            report=str(out / "report.html"),
            promoted=True,
            why="its run was asked for",
        )


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
