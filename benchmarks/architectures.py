"""How many of today's architectures import, and are right: exported from torch, checked one by one.

    python -m benchmarks.architectures --exporter /path/to/python            # all that there are
    python -m benchmarks.architectures --exporter PYTHON vit swin "torch:*"  # by name or family
    python -m benchmarks.architectures --until import --layout NHWC NCHW     # graphs only
    python -m benchmarks.architectures --times mobilenet                     # against onnxruntime

Each architecture of `benchmarks.torch_architectures` is exported by torch's tracing exporter
(legacy), by the one over torch.export (dynamo), or by both, once: files stay in the folder
`--cache`. `--exporter` names the interpreter that has torch, timm, torchvision, transformers, onnx
and onnxscript; retune's own needs none of them, and none at all for files that are there already.
Every file is imported, compiled with default schedules, and compared with onnxruntime. Prints for
each: nodes, tasks, what the device cannot do and the host does, and the largest deviation as a part
of the output's range (one that the library's criterion refuses is called wrong), or where it ended
and why; how many did at the end. `--times` also times the default schedules and onnxruntime, in
turns, and names the heaviest kernels; for a machine that does nothing else.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.check_model import STAGES, Facts
from benchmarks.command import parser_of
from benchmarks.table import geometric_mean
from benchmarks.torch_architectures import ARCHITECTURES, Architecture, Exporter
from retune.bundle.verify.compare import TOLERANCE
from retune.core.config import cache_root

ROOT = Path(__file__).resolve().parent.parent
_SHOWN = 160
"""Characters of a reason in a table; `--json` has all of it."""


@dataclass(frozen=True, slots=True)
class Case:
    """One architecture by one exporter."""

    architecture: Architecture
    exporter: Exporter

    @property
    def label(self) -> str:
        """The exporter, with the operator set where that is chosen."""
        return f"legacy{self.architecture.opset}" if self.exporter == "legacy" else "dynamo"

    def file(self, cache: Path) -> Path:
        """Where its ONNX file lies."""
        return cache / f"{self.architecture.name.replace(':', '-')}.{self.label}.onnx"


def cases_of(wanted: Sequence[str]) -> Iterator[Case]:
    """Those whose name or family has one of these texts in it, or matches it as a pattern."""
    patterns = [p if set("*?[") & set(p) else f"*{p}*" for p in map(str.lower, wanted)] or ["*"]
    for entry in ARCHITECTURES:
        texts = (entry.name.lower(), entry.family.lower())
        if any(fnmatch(text, pattern) for text in texts for pattern in patterns):
            for exporter in entry.exporters:
                yield Case(entry, exporter)


def exported(case: Case, options: argparse.Namespace) -> str:
    """Why there is no file of the case; empty if there is one, written now or before."""
    path = case.file(options.cache).resolve()
    if path.is_file():
        return ""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = case.architecture.name
    command = [options.exporter, "-m", "benchmarks.torch_export", name, case.exporter, str(path)]
    _, error = output_of(command, options.limit)
    return error if error or path.is_file() else "the exporter wrote no file"


def checked(case: Case, layout: str, options: argparse.Namespace) -> Facts:
    """What `check_model` finds out about the case's file."""
    command = [
        sys.executable, "-m", "benchmarks.check_model", str(case.file(options.cache).resolve()),
        "--layout", layout, "--until", options.until, "--device", options.device,
        "--seconds", str(options.seconds),
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


def rows_of(case: Case, options: argparse.Namespace) -> Iterator[Facts]:
    """One row for each layout; a single one if there is no file."""
    row: Facts = {
        "name": case.architecture.name,
        "family": case.architecture.family,
        "exporter": case.label,
    }
    error = exported(case, options)
    if error:
        yield row | {"stage": "export", "error": error}
    elif options.until == "export":
        yield row | {"stage": "done"}
    else:
        for layout in options.layout:
            yield row | {"layout": layout} | checked(case, layout, options)


def right(row: Facts) -> bool:
    """True if the library's criterion accepts every output: by its range, or by rounding."""
    return row.get("passed") is True


def show(row: Facts) -> str:
    """One line."""
    text = f"{row['name']:50} {row['family']:24} {row['exporter']:9} {row.get('layout', ''):4}"
    if "nodes" in row:
        text += f" {row['nodes']:5} nodes {row['tasks']:4} tasks"
    if isinstance(hosted := row.get("host"), list) and hosted:
        text += f" {len(hosted)} on the host ({'; '.join(hosted)})"[:_SHOWN]
    if "deviation" in row:
        text += f" deviation {row['deviation']:.1e}" + ("" if right(row) else " WRONG")
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
            f", {sum(map(right, rows))} of {there} agree within {TOLERANCE:.0e} or roundings"
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


def main() -> None:
    """Checks the architectures named on the command line, or all."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", help="parts of names or families, or patterns")
    parser.add_argument("--exporter", default=sys.executable, help="the python that has torch")
    parser.add_argument("--cache", type=Path, default=cache_root() / "architectures")
    parser.add_argument("--until", choices=("export", *STAGES), default="verify")
    parser.add_argument("--times", dest="until", action="store_const", const="times")
    parser.add_argument("--layout", nargs="+", choices=("NHWC", "NCHW"), default=["NHWC"])
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--seconds", type=float, default=5.0, help="of timing, for each")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of a process")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[Facts] = []
    for case in cases_of(options.names):
        for row in rows_of(case, options):
            rows.append(row)
            print(show(row), flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
