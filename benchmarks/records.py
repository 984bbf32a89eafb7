"""A store of a million records in twenty thousand files: queries, appends, and compaction.

    python -m benchmarks.records --folder /tmp/store

The store is made once, and made again only if the folder is empty: networks are tuned on several
devices night after night, and each file is a batch of one task. Then queries are timed, each one
by a process of its own, whose imports are not counted: files that it opens are in the page cache.
At last the store is compacted while readers ask for the best of a task, again and again, with a
pause (`--pause`) behind each query: without one, ten readers on two cores leave compaction a
sixth of one, and measure how cores are shared. What a query waits for is a core, by what Linux
says of its main thread, or its own threads, which wait for one: it takes no lock that another may
hold (`strace -f -e flock` shows LOCK_NB alone), and makes nothing durable.
"""

import json
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.command import parser_of
from retune.records import files
from retune.records.arrow import FILE_SCHEMA, to_table
from retune.records.conditions import Conditions
from retune.records.schema import Environment, TuningRecord, succeeded
from retune.records.store import RecordStore

TASKS = 25
"""Of each network."""
FIRST_DAY = date(2026, 1, 1)
DEVICE = "board{number}|driver 1|OpenCL 3.0"
FEATURES = 64
APPENDS = 50
PROBE = """
import json, sys, time
from threading import Thread
from benchmarks.records import QUERIES, core_wait_s
from retune.records.store import RecordStore
root, name, pause_s = sys.argv[1:]
ended = Thread(target=sys.stdin.read, daemon=True)
ended.start()
took, busy, waited, rows = [], [], [], set()
while not took or ended.is_alive():
    began, worked, wait = time.perf_counter(), time.process_time(), core_wait_s()
    rows.add(QUERIES[name](RecordStore(root)))
    took.append(time.perf_counter() - began)
    busy.append(time.process_time() - worked)
    waited.append(core_wait_s() - wait)
    if len(took) == 1:
        print(flush=True)
    ended.join(float(pause_s))
print(json.dumps([took, busy, waited, sorted(rows)]))
"""
"""Asks until its input ends, at least once; an empty line says that it has, with all imports."""


def main() -> None:
    """Prints a line for each figure."""
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--readers", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds behind a reader's query")
    given = parser.parse_args()
    if not (given.folder / files.ROOT_FOLDER).is_dir():
        began = time.perf_counter()
        fill(given.folder, given.rows, given.files, given.networks, given.devices)
        print(f"made in {time.perf_counter() - began:.1f} s")
    found = files.list_files(given.folder)
    print(f"{len(found)} files, {sum(files.sizes(given.folder)) / 2**20:.0f} MiB")
    for name in QUERIES:
        print(f"{name}, first time: {asked(given.folder, name)}")
        print(f"{name}, again: {asked(given.folder, name)}")
    print(f"append of 64 rows: {appended(given.folder)}")
    print(beside_readers(given.folder, given.readers, given.pause))
    for name in QUERIES:
        print(f"{name}, compacted: {asked(given.folder, name)}")


def fill(root: Path, rows: int, count: int, networks: int, devices: int) -> None:
    """A store of so many rows and files: nights of all networks on all devices."""
    each, rng = rows // count, np.random.default_rng(0)
    template = to_table([record(number) for number in range(each)])
    a_night = networks * devices * 5
    for number in range(count):
        night, rest = divmod(number, a_night)
        network, rest = divmod(rest, devices * 5)
        device, batch = divmod(rest, 5)
        task = f"{network * TASKS + (night * 5 + batch) % TASKS:032x}"
        day = FIRST_DAY + timedelta(days=night)
        values = {"target": f"board{device}", "model": f"net{network}", "date": day.isoformat()}
        folder = files.partition_folder(root, values)
        folder.mkdir(parents=True, exist_ok=True)
        table = batch_of(template, number, task, device, day, rng)
        pq.write_table(table, folder / f"part-{number:08}.parquet", compression="zstd")


def batch_of(
    template: pa.Table, number: int, task: str, device: int, day: date, rng: np.random.Generator
) -> pa.Table:
    """The template as a batch of that task, night and device."""
    rows = template.num_rows
    times = rng.uniform(50, 500, rows)
    began = datetime(day.year, day.month, day.day, 1, tzinfo=UTC)
    changed = {
        "record_id": [f"{number * rows + row:032x}" for row in range(rows)],
        "run_id": [f"{number // 5:032x}"] * rows,
        "night": [day.isoformat()] * rows,
        "task_key": [task] * rows,
        "task_name": [f"conv2d_{task[-4:]}"] * rows,
        "device": [DEVICE.format(number=device)] * rows,
        "config_hash": [f"{code:016x}" for code in rng.integers(2**62, size=rows)],
        "median_us": times,
        "features": list(rng.standard_normal((rows, FEATURES)).astype(np.float32)),
        "timestamp": [began + timedelta(seconds=number + row / 64) for row in range(rows)],
    }
    for name, values in changed.items():
        field = FILE_SCHEMA.field(name)
        column = pa.array(values, field.type)
        template = template.set_column(FILE_SCHEMA.get_field_index(name), field, column)
    return template


def record(number: int) -> TuningRecord:
    """A row as a search on a CPU writes it."""
    trace = [["split", "yy", [4, number % 7 + 1]], ["vectorize", "ff", 16]] * 12
    return TuningRecord(
        run_id="run",
        model="net0",
        target="board0",
        task_key="0",
        task_name="conv2d",
        op="conv2d",
        flops=10**8,
        bytes=10**6,
        input_shapes=((1, 64, 56, 56), (64, 64, 3, 3)),
        output_shape=(1, 64, 56, 56),
        dtypes=("float32",) * 3,
        tuner="evolution",
        sketch="cpu.direct",
        decisions=(4, 8, 16, number),
        knobs=(("yy", (4, number)), ("ff", (16,))),
        trace=json.dumps(trace),
        config_hash=f"{number:016x}",
        strategy="cpu.direct",
        device=DEVICE.format(number=0),
        conditions=conditions(),
        env=Environment(driver="1", opencl="3.0", retune="1"),
        features=(0.5,) * FEATURES,
        feature_set="9",
        measurement=succeeded(
            [100.0 + number] * 5, max_abs_err=1e-6, reference_us=10.0, build_s=0.1, run_s=0.1
        ),
    )


def conditions() -> Conditions:
    """Of all rows; the benchmark asks by device."""
    return Conditions(
        device=DEVICE.format(number=0),
        instance="board",
        host="host",
        compute_units=2,
        affinity="0-1",
        spread_bytes=2**26,
        constants="memory",
        flush=False,
    )


def best_of_a_task(store: RecordStore) -> int:
    """How many records there are; at most one."""
    from retune.records.ranking import best

    return int(best(store, f"{3:032x}", {"device": DEVICE.format(number=0)}) is not None)


def columns_of_a_network(store: RecordStore) -> int:
    """How many rows there are."""
    return len(store.scan({"model": "net1"}, ["task_key", "status", "median_us", "timestamp"]))


QUERIES = {"best of one task": best_of_a_task, "four columns of a network": columns_of_a_network}


def asked(root: Path, name: str) -> str:
    """The query's time in a process of its own."""
    (took,), (busy,), _, (rows,) = answer(reader(root, name))
    return f"{took:.2f} s, {busy:.2f} s of processor time ({rows} rows)"


def reader(root: Path, name: str, pause_s: float = 0.0) -> subprocess.Popen[bytes]:
    """A process that asks until `answer` is called, at least once, with pauses."""
    arguments = [sys.executable, "-c", PROBE, str(root), name, str(pause_s)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def answer(process: subprocess.Popen[bytes]) -> list[list[float]]:
    """Of each query: seconds, of them processor time, the main thread's wait for a core; and the
    different results."""
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a reader ended with exit code {process.returncode}")
    return json.loads(out)


def core_wait_s() -> float:
    """Seconds for which this process's main thread could have run and had no core, on Linux."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


def appended(root: Path) -> str:
    """Milliseconds, with the records made beforehand."""
    store, took = RecordStore(root), list[float]()
    batch, busy = [record(number) for number in range(64)], time.process_time()
    for _ in range(APPENDS):
        began = time.perf_counter()
        store.append(batch)
        took.append(1e3 * (time.perf_counter() - began))
    busy = 1e3 * (time.process_time() - busy) / APPENDS
    return f"{np.median(took):.1f} ms, {busy:.1f} ms of processor time (median of {APPENDS})"


def tell_rest(root: Path, done: Event) -> None:
    """Prints how many files there are still, each minute until it is done."""
    while not done.wait(60.0):
        print(f"compaction: {len(files.list_files(root))} files left", flush=True)


def beside_readers(root: Path, count: int, pause_s: float) -> str:
    """What compaction took, and the readers' queries from its begin on; each minute, how far it is.

    The first query of each, which imports, is not counted.
    """
    processes = [reader(root, next(iter(QUERIES)), pause_s) for _ in range(count)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline(), "a reader ended"
    done = Event()
    Thread(target=tell_rest, args=(root, done), daemon=True).start()
    began, worked = time.perf_counter(), time.process_time()
    less = RecordStore(root).compact()
    done.set()
    seconds, busy = time.perf_counter() - began, time.process_time() - worked
    answers = [answer(process) for process in processes]
    first, *_ = figures = [np.concatenate([item[n][1:] for item in answers]) for n in range(3)]
    rows = sorted({row for item in answers for row in item[3]})
    slowest = ", ".join(f"{figure[first.argmax()]:.2f}" for figure in figures)
    return (
        f"compaction: {less} files less in {seconds:.1f} s, {busy:.1f} s of processor time\n"
        f"{count} readers meanwhile: {len(first)} queries; seconds, of them processor time, and "
        f"waits for a core: of the slowest {slowest}; on the mean "
        f"{', '.join(f'{figure.mean():.2f}' for figure in figures)}; "
        f"{(first > 1).sum()} took over 1 s; rows {rows}"
    )


if __name__ == "__main__":
    main()
