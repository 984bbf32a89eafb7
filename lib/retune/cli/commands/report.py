"""`retune report`: the report of a bundle again, beside that of another version or run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retune.cli.console import print_json, print_line, print_table
from retune.cli.options import Json
from retune.core.files import check_file

if TYPE_CHECKING:
    from retune.report.comparison import ReportComparison

_WHICH = "OUT of a run, OUT/versions/N, or the file of a report"


def report(
    bundle: Annotated[Path, typer.Argument(metavar="A", help=f"Report: {_WHICH}.")],
    compare: Annotated[
        Path | None,
        typer.Option(metavar="B", help=f"Report to compare with: {_WHICH}. Default: none."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File of the new report.")] = Path(
        "report.html"
    ),
    json: Json = False,
) -> None:
    """Write the report of a run again, beside another version or run with --compare.

    One HTML file that needs nothing else. Ratios are times of A over those of B.
    """
    from retune.core.replacing import replacing
    from retune.report.comparison import compared
    from retune.report.html import render
    from retune.report.stored import read_report

    check_file("--out", out)
    data = read_report(_file(bundle))
    other = read_report(_file(compare)) if compare else None
    with replacing(out) as stream:
        stream.write(render(data, other).encode())
    found = compared(data, other) if other else None
    if json:
        print_json({"report": str(out), "comparison": found})
        return
    if found:
        _print(found)
    print_line(f"report: {out}")


def _file(path: Path) -> Path:
    from retune.bundle.versions import REPORT

    return path / REPORT if path.is_dir() else path


def _print(found: "ReportComparison") -> None:
    rows: list[dict[str, object]] = [
        {
            "task": layer.name,
            "runs": layer.weight,
            "us": layer.us and round(layer.us, 1),
            "other us": layer.other_us and round(layer.other_us, 1),
            "ratio": layer.ratio and round(layer.ratio, 3),
            "verdict": layer.verdict,
        }
        for layer in found.layers
    ]
    print_table(rows, f"time of each task, beside {found.title}")
    for name, us, other_us in found.latency:
        if us and other_us:
            ratio = us / other_us
            print_line(f"{name}: {us / 1e3:.3f} ms, other {other_us / 1e3:.3f} ms, {ratio:.3f}x")
    print_line("measured in different runs; `retune bench A B` compares two bundles in one run")
