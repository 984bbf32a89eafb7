"""What tests of store share with others."""

from dataclasses import replace
from datetime import UTC, datetime

from retune.records.schema import (
    Environment,
    TuningRecord,
    succeeded,
)

DAY = datetime(2026, 3, 1, 12, tzinfo=UTC)

DEVICE = "cpu one|1.0|OpenCL 3.0"


def record(number: int = 0, **changes: object) -> TuningRecord:
    times = (10.0 + number, 11.0 + number, 12.5 + number)
    measurement = succeeded(times, max_abs_err=1e-6, reference_us=100.0, build_s=0.5, run_s=0.1)
    plain = TuningRecord(
        run_id="run-1234567890",
        model="zoo:mlp",
        target="cpu one",
        task_key="task-a",
        task_name="dense_0",
        sketch="tiles",
        op="dense",
        flops=2_000_000,
        bytes=30_000,
        input_shapes=((10, 100), (1000, 100)),
        output_shape=(10, 1000),
        dtypes=("float32", "float32", "float32"),
        tuner="random",
        seed=7,
        decisions=(number, 2, 3),
        knobs=(("tile", (number, 2)), ("unroll", (3,))),
        trace='{"steps": []}',
        config_hash=f"{number:016x}",
        strategy="direct",
        layout="NCHW16c",
        device=DEVICE,
        env=Environment(driver="1.0", opencl="OpenCL 3.0", retune="0.1.0"),
        measurement=replace(measurement, timestamp=DAY),
    )
    return replace(plain, **changes)
