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
and why; how many did at the end. `--times` also times
the default schedules and onnxruntime, in turns, and names the heaviest kernels; for a machine that
does nothing else.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path

from benchmarks.check_model import STAGES, Facts
from benchmarks.command import parser_of
from benchmarks.survey import add_options, checked, output_of, show_all
from benchmarks.torch_architectures import ARCHITECTURES, Architecture, Exporter
from retune.core.config import cache_root


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


def rows_of(case: Case, options: argparse.Namespace) -> Iterator[Facts]:
    """One row for each layout, or one that says why the file is missing."""
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
        file = case.file(options.cache).resolve()
        for layout in options.layout:
            yield row | {"layout": layout} | checked(file, layout, options)


def main() -> None:
    """Checks the architectures named on the command line, or all."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", help="parts of names or families, or patterns")
    parser.add_argument("--exporter", default=sys.executable, help="the python that has torch")
    parser.add_argument("--cache", type=Path, default=cache_root() / "architectures")
    parser.add_argument("--until", choices=("export", *STAGES), default="verify")
    add_options(parser)
    options = parser.parse_args()
    show_all(
        chain.from_iterable(rows_of(case, options) for case in cases_of(options.names)),
        options.json,
    )


if __name__ == "__main__":
    main()
