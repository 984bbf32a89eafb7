"""`retune plan`: the cheapest layouts of a network's activations, by existing records."""

from typing import TYPE_CHECKING, Annotated

import typer

from retune.cli.commands.farm import Certs, Scheduler, farm_device
from retune.cli.console import print_json, print_line, print_table
from retune.cli.options import (
    Json,
    LayoutSolver,
    Model,
    Records,
    ShapeList,
    check_model,
    parse_shapes,
    record_store,
)
from retune.core.config import cache_root
from retune.core.errors import InputError
from retune.core.files import check_folder

if TYPE_CHECKING:
    from retune.core.layouts import LayoutPlan


def plan(
    model: Model,
    device: Annotated[str, typer.Option(help="A device of `retune devices`.")] = "pocl",
    scheduler: Scheduler = "",
    certs: Certs = None,
    shape: ShapeList = None,
    records: Records = None,
    layout_solver: LayoutSolver = "",
    json: Json = False,
) -> None:
    """Print the cheapest layouts of a network's activations.

    By the records of `retune tune --layout auto`.
    """
    del layout_solver  # refused
    shapes = parse_shapes(shape)
    check_model(model)
    name = farm_device(device, scheduler, certs)
    check_folder("RETUNE_CACHE", cache_root())
    store = record_store(records)
    from retune.api import import_network
    from retune.core.schema import plain
    from retune.device.opening import spec_of
    from retune.pipeline.layouts import totals_of
    from retune.search.conditions import network_conditions
    from retune.search.layout.search import recorded_layouts

    spec = spec_of(name)
    network = import_network(model, shapes, "NHWC", cache_root()).network
    where = network_conditions(spec, network.tasks.values())
    found = recorded_layouts(network, spec, store, where)
    if found is None:
        raise InputError(
            f"{store.root}: expected measurements of {model} in other layouts than NHWC on "
            f"{spec.name}, got none; `retune tune {model} --layout auto --out DIR` takes them"
        )
    chosen, totals = found.problem.plan(found.layouts), totals_of(found, network)
    if json:
        print_json({"plan": plain(chosen), "totals": plain(totals)})
        return
    print_table(_rows(chosen), f"layouts of {model} on {spec.model}")
    for total in totals:
        proven = ", proven optimal" if total.optimal else ""
        ratio = total.us / totals[0].us if totals[0].us else 1.0
        copied = f"{total.copies} activations copied"
        print_line(f"{total.name:20} {total.us / 1e3:9.3f} ms  {ratio:.3f}x  {copied}{proven}")


def _rows(chosen: "LayoutPlan") -> list[dict[str, object]]:
    """The kernels, then the copies."""
    layouts = chosen.layouts
    kernels: list[dict[str, object]] = [
        {
            "kernel": group,
            "reads": layouts.of_kernel(group).input,
            "makes": layouts.of_kernel(group).output,
            "us": round(us, 1) if us else None,
            "us in NHWC": round(chosen.nhwc_us[group], 1) if chosen.nhwc_us[group] else None,
        }
        for group, us in chosen.kernels_us.items()
    ]
    copies: list[dict[str, object]] = [
        {
            "kernel": f"copy of {value}",
            "reads": layouts.activations[value].made,
            "makes": ", ".join(layouts.activations[value].copies),
            "us": round(us, 1),
            "us in NHWC": None,
        }
        for value, us in chosen.copies_us.items()
    ]
    return [*kernels, *copies]
