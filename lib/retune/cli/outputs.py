"""Types of the commands' `--json` outputs, which scripts may rely on.

Read `OUTPUTS`. What commands print as it is are the library's own dataclasses; rows that they make
for people and programs alike are stated here. The documentation's reference is made of it, and
tests compare each command's output with it; commands do not load this file.
"""

from collections.abc import Mapping
from typing import Any, TypedDict, get_type_hints

from retune.bundle.verify.compare import Verification
from retune.bundle.versions import Version
from retune.cli.commands.quantize import QUALITY
from retune.cli.commands.run import OutputSummary
from retune.core.layouts import LayoutPlan
from retune.core.results import VerifyResult
from retune.core.schema import extended
from retune.core.target import DeviceSpec
from retune.device.remote.names import KeyRow
from retune.frontend.gguf.folder import ImportedDecoder
from retune.frontend.onnx.support import Support
from retune.nightly.history import SideBySide
from retune.nightly.members import PlannedNight
from retune.nightly.night import MemberResult, MemberState, Note
from retune.nightly.summary import JUDGED
from retune.pipeline.layout_manifest import LayoutTotal
from retune.pipeline.manifest import QuantizeManifest
from retune.pipeline.results import TuneResult
from retune.pipeline.rows import PRINTED
from retune.pipeline.running import RunRecord
from retune.records.nights import NightRow
from retune.records.store import Summary
from retune.report.comparison import ReportComparison
from retune.report.data import Latency
from retune.search.model.registry import Metrics, ModelCard


class _Row(TypedDict):
    name: str
    median_us: float
    p25_us: float
    p75_us: float
    samples: int


class _Kernel(TypedDict):
    group: str
    runs: int
    us: float
    share_percent: float
    gflops: float | None
    gbytes_per_s: float | None
    roofline_percent: float | None


class _Timed(TypedDict):
    module: str
    rounds: int
    rows: list[_Row]
    ratio: float | None
    waited_percent: float


class _Bench(_Timed, total=False):
    board: str
    profile: list[_Kernel]


class _Source(TypedDict):
    profile: str
    parameter: str
    value: int | str | list[str]
    source: str


class _Board(TypedDict):
    board: str
    key: str
    model: str
    jobs: int


class _Boards(TypedDict):
    keys: list[KeyRow]
    boards: list[_Board]


class _Best(TypedDict):
    task_name: str
    place: str
    median_us: float
    gflops: float | None
    trials: int
    failed: int
    strategy: str
    tuner: str
    knobs: dict[str, list[int]]
    constants: str
    layout_in: str
    layout_out: str
    model: str
    night: str
    run_id: str
    record_id: str
    task_key: str
    device: str
    conditions: str
    cost: float


class _OfTask(TypedDict):
    task_name: str
    task_key: str
    device: str
    conditions: str


class _Trial(_OfTask):
    place: str
    trial: int
    median_us: float | None
    best_us: float | None
    status: str
    tuner: str
    night: str
    run_id: str


class _Failure(TypedDict):
    task_name: str
    strategy: str
    status: str
    reason: str
    count: int
    share: float
    device: str


class _Compared(_OfTask):
    place: str
    median_us_before: float | None
    median_us_after: float | None
    ratio: float | None
    strategy_before: str | None
    strategy_after: str | None


class _Knob(_OfTask):
    strategy: str
    knob: str
    explained: float
    best: str
    values: int
    trials: int


class _Tuner(_OfTask):
    tuner: str
    trials: int
    failed: int
    best_us: float | None
    ratio_to_best: float | None
    trials_to_near: float | None


class _Task(TypedDict):
    key: str
    name: str
    op: str
    weight: int
    flops: int
    inputs: list[list[int]]
    output: list[int]
    stride: int | None
    epilogue: list[str]
    expression: str


class _TunedTask(TypedDict):
    task: str
    op: str
    output: str
    weight: int
    mflop: float
    trials: int
    failed: int
    best_us: float | None
    gflops: float | None
    total_us: float | None
    expected_percent: float | None
    gained_percent: float | None
    further_percent: float | None
    records: str | None


class _AtSizes(TypedDict):
    sizes: str
    latency: list[Latency]


_Roofline = TypedDict(
    "_Roofline",
    {"module": str, "ops per byte": float, "bound": str, "GOPS": float, "roof": float},
)


class _Rooflines(TypedDict):
    config: dict[str, str | int]
    layers: list[_Roofline]


class _SimulatedModule(TypedDict):
    module: str
    config: str
    instructions: int
    micro_ops: int
    cycles: int
    time_us: float
    gops: float
    gemm_utilization: float
    read_bytes: int
    written_bytes: int
    busy_cycles: dict[str, int]


class _ExportedProgram(TypedDict):
    folder: str
    bytes: int
    make: str


class _NightlyFile(TypedDict):
    config: str
    models: list[str]
    devices: list[str]


class _Exported(TypedDict):
    file: str
    records: int


class _Distilled(_Exported):
    tasks: int


class _Merged(TypedDict):
    store: str
    records: int
    new: int


class _Generated(TypedDict):
    prompt: str
    text: str
    prompt_tokens: list[int]
    tokens: list[int]
    ended_by: str
    prefill_s: float
    decode_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


class _Report(TypedDict):
    report: str
    comparison: ReportComparison | None


class _Packed(TypedDict):
    file: str
    bytes: int
    digest: str


class _Plan(TypedDict):
    plan: LayoutPlan
    totals: list[LayoutTotal]


_night_row = get_type_hints(NightRow)
_verdict = extended("NightVerdict", None, **{name: _night_row[name] for name in JUDGED})
_member = extended(
    "Member",
    MemberState,
    result=extended("Measured", MemberResult, statuses=dict[str, int]) | None,
    outcome=str,
    gain=float | None,
    nights_us=list[float | None],
    verdict=_verdict | None,
)


class _Night(TypedDict):
    night: str
    begun: str
    ended: str
    promoted: int
    failed: int
    stopped: str
    events: list[str]
    members: list[_member]  # type: ignore[valid-type]
    notes: list[Note]


class _PrunedFiles(TypedDict):
    removed: bool
    nights: list[str]
    kept: list[str]
    folders: int
    pages: int
    outputs: int
    bytes: int


class _PrunedCaches(TypedDict):
    removed: bool
    outputs: int
    runs: int
    programs: int
    bytes: int


class _Pruned(_PrunedFiles, total=False):
    flow_runs: int
    task_runs: int
    artifacts: int
    logs: int


_verified = extended(
    "Verification",
    Verification,
    module=str,
    oracle=str,
    passed=bool,
    criterion=str,
    decision=str,
    notes=list[str],
)
_result = get_type_hints(TuneResult)
_tuned = extended(
    "Tuned",
    None,
    **{name: _result[name] for name in PRINTED}
    | {
        "statuses": dict[str, int],
        "tasks": list[_TunedTask],
        "sizes": list[_AtSizes],
        "failed": dict[str, str],
        "verification": extended(
            "TunedVerification", VerifyResult, used=float, max_error=float, largest_error=str
        ),
    },
)
_version = extended("Version", Version, current=bool)
_card = extended("ListedModel", ModelCard, current=bool)
_support = extended("Operator", Support, domain=str, opsets=str, how=str, limits=str)
_run = extended("Run", RunRecord, state=str)
_quality = get_type_hints(QuantizeManifest)

OUTPUTS: Mapping[str, Any] = {
    "bench": _Bench,
    "build": _version,
    "devices": list[DeviceSpec],
    "devices --profiles": list[_Source],
    "devices --scheduler": _Boards,
    "export": _ExportedProgram,
    "generate": _Generated,
    "import-gguf": ImportedDecoder,
    "init": _NightlyFile,
    "model evaluate": dict[str, Metrics],
    "model list": list[_card],
    "model rollback": ModelCard | None,
    "model train": ModelCard,
    "nightly compare": list[SideBySide],
    "nightly plan": PlannedNight,
    "nightly prune": _Pruned,
    "nightly run": _Night,
    "nightly status": _Night,
    "ops": list[_support],
    "pack": _Packed,
    "plan": _Plan,
    "prune": _PrunedCaches,
    "quantize": extended("Quantized", None, **{name: _quality[name] for name in QUALITY}),
    "records best": list[_Best],
    "records compare": list[_Compared],
    "records curve": list[_Trial],
    "records distill": _Distilled,
    "records export": _Exported,
    "records failures": list[_Failure],
    "records import": _Merged,
    "records importance": list[_Knob],
    "records tuners": list[_Tuner],
    "records summary": extended("Records", Summary, per_task=list[dict[str, Any]]),
    "report": _Report,
    "resume": list[_run],
    "rollback": _version,
    "run": list[OutputSummary],
    "tasks": list[_Task],
    "tune": _tuned,
    "verify": _verified,
    "verify of integers": extended("IntegerVerification", _verified, float_rel_range=float),
    "versions": list[_version],
    "vta roofline": _Rooflines,
    "vta simulate": _SimulatedModule,
}
"""Command -> type of what it prints with `--json`."""
