"""What the surveys of many ONNX files have in common: a process for each, a line, a summary.

Read `checked`: `check_model` in a process of its own, so that nothing one network does ends the
others' check. `architectures` exports its files from torch, `packaged_models` finds them in
packages.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.check_model import STAGES, Facts
from benchmarks.table import geometric_mean
from retune.bundle.verify.compare import TOLERANCE

ROOT = Path(__file__).resolve().parent.parent
_SHOWN = 160
"""Characters of a reason in a table; `--json` has all of it."""


def checked(
    file: Path, layout: str, options: argparse.Namespace, more: Iterable[str] = ()
) -> Facts:
    """What `check_model` finds out about the file, run with `more` of its options."""
    command = [
        sys.executable, "-m", "benchmarks.check_model", str(file),
        "--layout", layout, "--until", options.until, "--device", options.device,
        "--seconds", str(options.seconds), *more,
    ]  # fmt: skip
    text, error = output_of(command, options.limit)
    lines = text.splitlines()
    found: Facts = json.loads(lines[-1]) if lines else {"stage": STAGES[0]}
    return found | {"error": error} if error else found


def output_of(command: Sequence[str], limit_s: float) -> tuple[str, str]:
    """What a process printed, and why it failed; empty if it did not."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        text = printed if isinstance(printed, str) else printed.decode(errors="replace")
        return text, f"took more than {limit_s:.0f} s"
    if done.returncode < 0:
        return done.stdout, f"killed by {signal.Signals(-done.returncode).name}"
    last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    return done.stdout, last if done.returncode else ""


def right(row: Facts) -> bool:
    """True if the library's criterion accepts every output: by its range, or by rounding."""
    return row.get("passed") is True


def show(row: Facts) -> str:
    """One line."""
    about = f"{row['family']:24} {row['exporter']:9}" if "family" in row else ""
    text = f"{row['name']:50} {about} {row.get('layout', ''):4}"
    if "nodes" in row:
        text += f" {row['nodes']:5} nodes {row['tasks']:4} tasks"
    if isinstance(hosted := row.get("host"), list) and hosted:
        text += f" {len(hosted)} on the host ({'; '.join(hosted)})"[:_SHOWN]
    if "deviation" in row:
        text += f" deviation {row['deviation']:.1e}" + ("" if right(row) else " WRONG")
        text += " from numpy" if row.get("oracle") == "numpy" else ""
        text += " of empty or constant outputs" if row.get("constant") else ""
    if "error" in row:
        text += f" {row['stage']}: {str(row['error'])[:_SHOWN]}"
    return text + _times(row)


def _times(row: Facts) -> str:
    """Both times, their ratio, and the heaviest steps; empty if nothing was timed."""
    times, steps = row.get("median_ms"), row.get("heaviest")
    if not isinstance(times, dict) or not isinstance(steps, list):
        return ""
    ours, theirs = float(times["default"]), float(times["onnxruntime"])
    named = ", ".join(f"{s['steps']} x {s['kernel']} {s['share']:.0%}" for s in steps)
    return f" {ours:.2f} ms, onnxruntime {theirs:.2f} ms ({ours / theirs:.2f}x): {named}"


def summary(rows: Sequence[Facts]) -> list[str]:
    """How many came how far, and what stopped the others."""
    ended = Counter(str(row["stage"]) for row in rows if "error" in row)
    there = len(rows) - ended["export"]
    imported = there - ended["import"]
    lines = [f"{there} of {len(rows)} export, {imported} of {there} import"]
    compared = [row for row in rows if "deviation" in row]
    if compared:
        lines[0] += (
            f", {sum(map(right, rows))} of {there} agree with their oracle within {TOLERANCE:.0e} "
            "or roundings"
        )
    hosted = sum(bool(row.get("host")) for row in rows)
    if hosted:
        lines.append(f"  {hosted} have steps on the host")
    for stage, count in ended.items():
        lines.append(f"  {count} end at {stage}")
    ratios = [
        times["default"] / times["onnxruntime"]
        for row in rows
        if isinstance(times := row.get("median_ms"), dict)
    ]
    if ratios:
        mean = geometric_mean(ratios)
        lines.append(f"default / onnxruntime: geometric mean {mean:.3f}, worst {max(ratios):.3f}")
    return lines


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of all surveys, beside the stages that each has for `--until`."""
    parser.add_argument("--times", dest="until", action="store_const", const="times")
    parser.add_argument("--layout", nargs="+", choices=("NHWC", "NCHW"), default=["NHWC"])
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--seconds", type=float, default=5.0, help="of timing, for each")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of a process")
    parser.add_argument("--json", type=Path)


def show_all(found: Iterable[Facts], file: Path | None) -> None:
    """Prints each row once it is there, and a summary; `file` has all rows so far as JSON."""
    rows: list[Facts] = []
    for row in found:
        rows.append(row)
        print(show(row), flush=True)
        if file:
            file.write_text(json.dumps(rows, indent=1))
    print("\n".join(summary(rows)))
