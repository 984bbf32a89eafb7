"""`retune ops`: which operators of ONNX models are imported, and with what limits."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retune.cli.console import print_json, print_line, print_table
from retune.cli.options import Json

if TYPE_CHECKING:
    from retune.frontend.onnx.support import Support

Name = Annotated[
    str | None, typer.Argument(metavar="OPERATOR", help="Operator, such as Conv. Default: all.")
]


def ops(name: Name = None, json: Json = False) -> None:
    """List the operators of ONNX models that are imported, of all domains.

    With opsets, the way of the import, and limits.
    """
    from retune.frontend.onnx.support import support_of, supported

    found = supported() if name is None else (support_of(name),)
    if json:
        print_json([_data(support) for support in found])
    elif name is None:
        for domain in dict.fromkeys(support.domain for support in found):
            _print_domain(domain, [support for support in found if support.domain == domain])
        print_line("kernels: on the device; folded: while importing; function: by other operators;")
        print_line("host: in numpy, between kernels. With known inputs everything is folded.")
    else:
        _print_one(found[0])


def _print_domain(domain: str, found: Sequence["Support"]) -> None:
    from retune.frontend.onnx.support import newest_opset

    imported = [support for support in found if support.imported]
    rows = [
        {"operator": s.name, "opsets": s.opsets, "how": s.way, "limits": s.limits} for s in imported
    ]
    print_table(rows, f"operators of {domain or 'ONNX'} that are imported")
    others = [support for support in found if not support.imported]
    missing, refused = (
        [s.name.removeprefix(f"{domain}::") for s in others if bool(s.versions) is advised]
        for advised in (False, True)
    )
    counted = f"{len(imported)} of {len(found)} operators of opset {newest_opset(domain)} and older"
    if missing:
        print_line(f"{counted}; not: {', '.join(missing)}")
    if refused:
        print_line(f"refused with advice: {', '.join(refused)}")


def _print_one(support: "Support") -> None:
    if not support.versions:
        print_line(f"{support.name} is not imported, unless its inputs are all known")
        return
    if not support.imported:
        print_line(f"{support.name} is refused. {support.versions[0].meaning}")
        return
    print_line(f"{support.name}, opsets {support.opsets}")
    for version in support.versions:
        print_line(f"  from {version.since:<3} {version.way}: {version.meaning}")
        if version.limits:
            print_line(f"           limits: {version.limits}")


def _data(support: "Support") -> dict[str, Any]:
    said = {"domain": support.domain, "opsets": support.opsets}
    return {**asdict(support), **said, "how": support.way, "limits": support.limits}
