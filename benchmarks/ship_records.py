"""Makes the file of records that the package brings: the best few of each task of some networks.

    python -m benchmarks.ship_records --minutes 1                     # all NETWORKS, this device
    python -m benchmarks.ship_records --minutes 2 model.onnx zoo:kws  # these
    python -m benchmarks.ship_records --minutes 0                     # what the store has already

Tunes one network after the other into the store `--records`, which goes on where it stopped, and
writes the `--best` of each task to lib/retune/records/shipped/. A file is named by the device's
class, vectors and registers, since its records serve all devices that are alike; tasks that the
store does not have stay as they are in it. All such files have a megabyte at most. For a machine
that does nothing else.
"""

import time
from pathlib import Path

import retune.api
from benchmarks.command import parser_of
from retune.core.errors import RetuneError
from retune.core.target import DeviceSpec
from retune.device.opening import spec_of
from retune.records.distilled import devices_of, distill, read_records, write_records
from retune.records.schema import TuningRecord
from retune.records.shared import SHIPPED
from retune.records.store import RecordStore

NETWORKS = (
    "zoo:squeezenet_v1.1", "zoo:mobilenet", "zoo:resnet18_v1", "zoo:resnet50_v1", "zoo:vgg19_bn",
    "light:shufflenet", "light:inception_v1", "light:densenet121", "zoo:inception_v3",
    "zoo:densenet201", "zoo:ssd_resnet50_512", "zoo:dcgan", "zoo:kws", "zoo:mlp",
)  # fmt: skip
MOST_BYTES = 1 << 20
"""Of all files together."""


def file_of(spec: DeviceSpec) -> Path:
    """The file for devices that are alike."""
    kind = f"{spec.device_class}-{spec.vector_bits}bit-{spec.vector_registers}registers"
    return SHIPPED / f"{kind}.jsonl.gz"


def ship(store: RecordStore, spec: DeviceSpec, best: int) -> tuple[int, int]:
    """The device's file has the best of each of its tasks in the store; records and bytes of it.

    Raises: SystemExit where all files would be too large; the former file stays.
    """
    path = file_of(spec)
    new = distill(store, best, device=spec.fingerprint)
    known = {(record.task_key, record.device) for record in new}
    earlier = read_records(path) if path.exists() else None
    kept = [r for r in earlier.records if (r.task_key, r.device) not in known] if earlier else []
    records: list[TuningRecord] = sorted([*kept, *new], key=lambda record: record.task_key)
    described = {**(earlier.devices if earlier else {})}
    used = {record.spec for record in kept}
    devices = [*devices_of(store, new), *(s for key, s in described.items() if key in used)]
    path.parent.mkdir(exist_ok=True)
    made = path.with_suffix(".new.gz")
    count = write_records(records, made, list(dict.fromkeys(devices)))
    others = sum(p.stat().st_size for p in SHIPPED.glob("*.jsonl.gz") if p != path)
    if (size := made.stat().st_size) + others > MOST_BYTES:
        made.unlink()
        raise SystemExit(f"{path}: {size} bytes and {others} of others, more than {MOST_BYTES}")
    made.replace(path)
    return count, size


def main() -> None:
    """Tunes the networks, and writes the file after each of them."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--minutes", type=float, default=1.0, help="of each network; 0: none")
    parser.add_argument("--records", type=Path, default=Path("artifacts/shipping/records"))
    parser.add_argument("--best", type=int, default=2)
    parser.add_argument("--device", default="pocl")
    options = parser.parse_args()
    spec, store = spec_of(options.device), RecordStore(options.records)
    for network in options.networks if options.minutes else []:
        try:
            retune.api.tune_network(
                network,
                options.records.parent / network.replace(":", "-").replace("/", "-"),
                minutes=options.minutes,
                device=options.device,
                records=options.records,
            )
        except RetuneError as error:
            print(f"{network}: {error}", flush=True)
            continue
        count, size = ship(store, spec, options.best)
        print(f"{time.strftime('%X')} {network}: {count} records, {size} bytes", flush=True)
    if not options.minutes:
        print(ship(store, spec, options.best))


if __name__ == "__main__":
    main()
