"""A tuned bundle in version control: the lock file builds it again, and reports compare two runs.

    .venv/bin/python examples/11_lock_and_compare.py [TRIALS] [OUT]

A lock file holds the chosen schedules and the hashes of the bundle's files. Building from it
measures nothing, and gives these bytes or says what differs. Reports contain their data, so that
two of them can be compared: which layer got faster, and with which strategy.
"""

import subprocess
import sys
from pathlib import Path

import retune.api
from retune.report.comparison import compared
from retune.report.html import render
from retune.report.stored import read_report


def same_files(one: Path, other: Path) -> bool:
    """Whether both folders hold the same files with the same bytes."""
    names = sorted(path.name for path in one.iterdir())
    return names == sorted(path.name for path in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


def main() -> None:
    """Tunes twice, builds the second bundle again from its lock, and compares the two runs."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    out = Path(sys.argv[2] if len(sys.argv) > 2 else "artifacts/locked")
    few = retune.api.tune_network("zoo:mlp", out / "few", trials=0)
    more = retune.api.tune_network("zoo:mlp", out / "more", trials=trials)

    lock, again = out / "more" / "retune.lock", out / "again"
    command = ["build", "zoo:mlp", "--locked", str(lock), "--out", str(again)]
    subprocess.run([sys.executable, "-m", "retune", *command], check=True)
    same = same_files(Path(more.module), again / "module")
    print("built again from its lock:", "the same bytes" if same else "OTHER BYTES")

    data, other = (read_report(Path(run.report)) for run in (more, few))
    for layer in compared(data, other).layers:
        ratio = f"{layer.ratio:.2f}x" if layer.ratio else "-"
        print(f"{layer.name:40} {ratio:>6} {layer.verdict:10} {layer.strategy}")
    page = out / "compared.html"
    page.write_text(render(data, other), encoding="utf-8")
    print(f"report beside the other: {page}")


if __name__ == "__main__":
    main()
