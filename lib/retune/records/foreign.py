"""Measurements as the JSON lines of TVM's tuners, AutoTVM and Ansor, in and out where fields map.

Read `read_foreign` and `foreign_lines`. What maps is what was measured: workload, device, decisions
by name, times, failure and moment. Schedules do not: TVM's are of other spaces. So rows that are
read are for comparison, under a task of their own, and nothing is ever compiled from them. Rows
that are written say how fast something was, and hold the decisions as entities.

Sources: tvm.autotvm.record (version 0.2) and src/auto_scheduler/measure_record.cc (v0.6), TVM 0.16.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from retune import __version__
from retune.core.errors import InputError, RecordError
from retune.core.keys import content_key, short_key
from retune.core.target import model_of
from retune.records.arrow import check_storable
from retune.records.schema import Measurement, Status, TuningRecord, failed, succeeded

Kind = Literal["autotvm", "ansor"]
KINDS: tuple[Kind, ...] = ("autotvm", "ansor")

_ERRORS: Mapping[int, Status] = {
    0: "ok", 1: "compile_error", 2: "compile_error", 3: "compile_error", 4: "launch_error",
    5: "wrong_result", 6: "timeout", 7: "timeout", 8: "crash",
}  # fmt: skip
"""MeasureErrorNo of both tuners."""
_NUMBERS: Mapping[Status, int] = {
    "ok": 0, "compile_error": 2, "launch_error": 4, "wrong_result": 5, "timeout": 7, "crash": 8,
    "skipped": 8,
}  # fmt: skip
_FAR = 1e10
"""Cost of a failed candidate, in seconds, as both tuners write it."""

_FAULTS = (
    *(ValueError, KeyError, TypeError, IndexError, AttributeError),
    *(OverflowError, OSError, RecursionError),
)
"""What reading a line raises that neither tuner wrote; OSError: a moment that no clock has."""

Json = dict[str, Any]


def kind_of(path: Path) -> Kind | None:
    """Whose lines the file holds, by its first one; None for neither."""
    try:
        with path.open(encoding="utf-8") as stream:
            first = json.loads(stream.readline(1 << 20))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(first, dict):
        return None
    if {"input", "config", "result"} <= first.keys():
        return "autotvm"
    return "ansor" if {"i", "r"} <= first.keys() else None


def read_foreign(path: Path, kind: Kind) -> tuple[TuningRecord, ...]:
    """The rows of the file; the same line is the same record, however often it is read.

    Raises: InputError for a file that cannot be read; RecordError naming the line that is not as
    that tuner writes it.
    """
    read = _from_autotvm if kind == "autotvm" else _from_ansor
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: expected JSON lines of {kind}, got none: {error}") from error
    found: dict[str, TuningRecord] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            made = read(json.loads(line))
        except _FAULTS as error:
            raise RecordError(
                f"{where}: expected a record of {kind}, got another line "
                f"({type(error).__name__}: {error}); remove it"
            ) from error
        found[where] = replace(made, record_id=content_key(kind, line), run_id=path.stem)
    check_storable(found)
    return tuple(found.values())


def _from_autotvm(line: Json) -> TuningRecord:
    target, name, arguments, _ = line["input"]
    costs, error, spent, stamp = line["result"]
    config = line["config"]
    knobs = tuple((str(knob), _numbers(value)) for knob, _, value in config.get("entity", ()))
    tensors = [entry for entry in arguments if entry and entry[0] == "TENSOR"]
    made = _row("autotvm", str(target), [name, arguments], config)
    return replace(
        made,
        op=str(name).partition(".")[0],
        task_name=f"{name}_{short_key(made.task_key)}",
        input_shapes=tuple(tuple(map(int, shape)) for _, shape, _ in tensors),
        dtypes=tuple(str(dtype) for _, _, dtype in tensors),
        knobs=knobs,
        decisions=tuple(value for _, values in knobs for value in values),
        measurement=_measurement(costs, error, spent, stamp),
    )


def _from_ansor(line: Json) -> TuningRecord:
    (workload, target, *_), (_, steps) = line["i"]
    costs, error, spent, stamp = line["r"]
    made = _row("ansor", str(target), workload, steps)
    return replace(
        made,
        task_name=f"ansor_{short_key(made.task_key)}",
        measurement=_measurement(costs, error, spent, stamp),
    )


def _row(kind: Kind, target: str, task: object, config: object) -> TuningRecord:
    """A record with the fields that both formats have; the schedule is kept as it is written."""
    return TuningRecord(
        run_id="",
        model=kind,
        target=target.partition(" ")[0] or kind,
        task_key=content_key(kind, json.dumps(task)),
        task_name="",
        tuner=kind,
        sketch=kind,
        decisions=(),
        trace=json.dumps(config),
        config_hash=content_key(json.dumps(config)),
        strategy=kind,
        device=target,
        measurement=failed("skipped", "not read"),
    )


def _numbers(value: object) -> tuple[int, ...]:
    """The whole numbers of an entity: a split's factors, an order, a choice. -1: what is left."""
    values = cast("list[object]", value) if isinstance(value, list) else [value]
    return tuple(int(each) for each in values if isinstance(each, bool | int))


def _measurement(costs: list[float], error: int, spent: float, stamp: float) -> Measurement:
    status, when = _ERRORS.get(int(error), "crash"), datetime.fromtimestamp(stamp, UTC)
    if not math.isfinite(spent) or (status == "ok" and not all(0 < c < _FAR for c in costs)):
        raise ValueError(f"expected seconds, got {costs} and {spent}")
    if status == "ok":
        times = [1e6 * float(cost) for cost in costs]
        made = succeeded(times, max_abs_err=None, reference_us=None, build_s=0.0, run_s=spent)
    else:
        made = failed(status, f"error {error} of TVM", run_s=spent)
    return replace(made, timestamp=when)


def foreign_lines(records: Iterable[TuningRecord], kind: Kind) -> list[str]:
    """A line for each record, as that tuner writes it."""
    write = _autotvm_line if kind == "autotvm" else _ansor_line
    return [json.dumps(write(record), allow_nan=False) for record in records]


def _autotvm_line(record: TuningRecord) -> Json:
    tensors = [
        ["TENSOR", list(shape), dtype]
        for shape, dtype in zip(record.input_shapes, record.dtypes, strict=False)
    ]
    entity = [
        [name, "ot", values[0]] if len(values) == 1 else [name, "sp", list(values)]
        for name, values in record.knobs
    ]
    return {
        "input": [_target(record), f"{record.op}.retune", tensors, {}],
        "config": {"index": 0, "code_hash": record.config_hash, "entity": entity},
        "result": _result(record.measurement),
        "version": 0.2,
        "tvm_version": f"retune {__version__}",
    }


def _ansor_line(record: TuningRecord) -> Json:
    shapes = [list(shape) for shape in (*record.input_shapes, record.output_shape)]
    workload = json.dumps([record.task_key, *shapes])
    return {
        "i": [[workload, _target(record)], [[], []]],
        "r": _result(record.measurement),
        "v": "v0.6",
    }


def _target(record: TuningRecord) -> str:
    return f"opencl -model={model_of(record.device).replace(' ', '_')}"


def _result(measured: Measurement) -> list[object]:
    costs = [1e-6 * t for t in measured.run_times_us or (measured.median_us,) if t is not None]
    spent = measured.build_s + measured.run_s
    number = _NUMBERS[measured.status]
    return [costs or [_FAR], number, spent, measured.timestamp.timestamp()]
