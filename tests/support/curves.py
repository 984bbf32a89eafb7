"""What tests of curves share with others."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from retune.core.results import TaskEntry
from retune.records.conditions import Conditions
from retune.records.schema import TuningRecord, failed, succeeded

CONDITIONS = Conditions(
    device="cpu one|1.0|OpenCL 3.0",
    instance="pocl",
    host="box",
    compute_units=2,
    affinity="0-1",
    spread_bytes=0,
    constants="warm",
    flush=False,
)

START = datetime(2026, 3, 1, 22, tzinfo=UTC)


def entry(key: str, weight: int = 1, flops: int = 1000, *, tunable: bool = True) -> TaskEntry:
    return TaskEntry(
        key=key,
        name=key,
        op="dense",
        weight=weight,
        flops=flops,
        input_shapes=(),
        output_shape=(),
        tunable=tunable,
    )


def trial(key: str, number: int, time_us: float | None, **changes: object) -> TuningRecord:
    """The `number`th measurement of all; None failed. It took half a second."""
    if time_us is None:
        measured = failed("timeout", "too slow", build_s=0.25, run_s=0.25)
    else:
        measured = succeeded(
            (time_us,), max_abs_err=0.0, reference_us=1000.0, build_s=0.25, run_s=0.25
        )
    plain = TuningRecord(
        run_id="run",
        trial=number,
        model="net",
        target="cpu one",
        task_key=key,
        task_name=key,
        sketch="tiles",
        decisions=(number,),
        trace="{}",
        config_hash=f"{number}",
        device=CONDITIONS.device,
        conditions=CONDITIONS,
        measurement=replace(measured, timestamp=START + timedelta(seconds=number)),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]
