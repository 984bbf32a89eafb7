"""`retune ops`: which operators of ONNX are imported, and with what limits."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retune.cli.console import print_json, print_line, print_table
from retune.cli.options import Json

if TYPE_CHECKING:
    from retune.frontend.onnx.support import Support

Name = Annotated[str | None, typer.Argument(help="Operator, such as Conv. Default: all.")]


def ops(name: Name = None, json: Json = False) -> None:
    """List the ONNX operators that are imported.

    By opset, how, and with what limits.
    """
    from retune.frontend.onnx.support import newest_opset, support_of, supported

    found = supported() if name is None else (support_of(name),)
    if json:
        print_json([_data(support) for support in found])
    elif name is None:
        imported = [support for support in found if support.versions]
        rows = [
            {"operator": s.name, "opsets": s.opsets, "how": s.way, "limits": s.limits}
            for s in imported
        ]
        print_table(rows, "operators of ONNX that are imported")
        missing = [support.name for support in found if not support.versions]
        print_line(
            f"{len(imported)} of {len(found)} operators of opset {newest_opset()} and older; "
            f"not: {', '.join(missing) or 'none'}"
        )
        print_line("kernels: on the device; folded: while importing; function: by other operators;")
        print_line("host: in numpy, between kernels. With known inputs everything is folded.")
    else:
        _print_one(found[0])


def _print_one(support: "Support") -> None:
    if not support.versions:
        print_line(f"{support.name} is not imported, unless its inputs are all known")
        return
    print_line(f"{support.name}, opsets {support.opsets}")
    for version in support.versions:
        print_line(f"  from {version.since:<3} {version.way}: {version.meaning}")
        if version.limits:
            print_line(f"           limits: {version.limits}")


def _data(support: "Support") -> dict[str, Any]:
    said = {"opsets": support.opsets, "how": support.way, "limits": support.limits}
    return {**asdict(support), **said}
