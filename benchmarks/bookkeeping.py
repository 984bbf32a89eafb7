"""What Prefect and bookkeeping cost: a run, and the same command again, which finds everything.

    python -m benchmarks.bookkeeping zoo:resnet18_v1 --minutes 5

Every run is a process of its own. The second one does all that is not a stage's work: interpreter,
imports, the private server, one task run for each call of a stage, hashes of all files. So its time
over the first one's is the share of bookkeeping, at most. The third one does without Prefect.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTLED_S = 10.0
"""An idle server's memory is read after this time."""


def main() -> None:
    """Prints the times of the three runs and the server's memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=5.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = ["tune", given.model, "--out", f"{folder}/out", "--minutes", str(given.minutes)]
        first = run(Path(folder), command)
        again = run(Path(folder), command)
        plain = run(Path(folder), [*command, "--no-prefect"])
        print(f"{given.model}, {given.minutes:g} minutes of measuring")
        print(f"the run                     {first:8.1f} s")
        print(f"again, all found            {again:8.1f} s  {again / first:.1%} of the run")
        print(f"again, without Prefect      {plain:8.1f} s  {plain / first:.1%} of the run")
        print(f"the private server, idle    {server_bytes(Path(folder)) / 2**20:8.0f} MiB resident")


def run(folder: Path, arguments: list[str]) -> float:
    """Seconds of one command."""
    environment = os.environ | {
        "RETUNE_RECORDS": str(folder / "records"),
        "RETUNE_CACHE": str(folder / "cache"),
        "PREFECT_HOME": str(folder / "prefect"),
    }
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "retune.cli.main", *arguments],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - started


def server_bytes(folder: Path) -> int:
    """Resident memory of a private server that nobody asks anything."""
    from retune.prefect.server import prefect_api

    with prefect_api(folder / "prefect"):
        time.sleep(SETTLED_S)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                pages = int((process / "statm").read_text().split()[1])
            except OSError:
                continue
            if parent == os.getpid() and b"uvicorn" in command:
                return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


if __name__ == "__main__":
    main()
