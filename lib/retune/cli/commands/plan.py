"""`retune plan`: the cheapest layouts of a network's activations, by existing records."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retune.cli.console import print_json, print_line, print_table
from retune.cli.options import Json, record_store
from retune.cli.request import takes_request
from retune.core.errors import InputError
from retune.core.files import check_folder
from retune.core.names import check_model_file
from retune.core.ranges import said_of
from retune.pipeline.request import TuneRequest

if TYPE_CHECKING:
    from retune.core.layouts import LayoutPlan
    from retune.pipeline.layout_manifest import LayoutTotal


@takes_request(
    *("model", "device", "precision", "max_deviation", "shapes", "values", "states", "records"),
    "layout_solver",
)
def plan(request: TuneRequest, json: Json = False) -> None:
    """Print the fastest activation layouts of a network.

    It follows from the records of `retune tune --layout auto`; for ranges, at the tuned sizes.
    """
    check_model_file(request.model)
    check_folder("RETUNE_CACHE", Path(request.work))
    store, model = record_store(Path(request.records)), request.model
    from retune.device.opening import spec_of
    from retune.pipeline.layouts import totals_of
    from retune.pipeline.network import open_network
    from retune.pipeline.precision import check_precision
    from retune.pipeline.sizes import tuned_requests
    from retune.search.conditions import network_conditions
    from retune.search.layout.search import recorded_layouts

    check_precision(request)
    spec, shown = spec_of(request.device), list[dict[str, Any]]()
    for sizes, own in tuned_requests(request):
        at = f" at {sizes}" if sizes.values else ""
        with said_of(sizes):
            network = open_network(own).network
        where = network_conditions(spec, network.tasks.values())
        found = recorded_layouts(network, spec, store, where)
        if found is None:
            raise InputError(
                f"{store.root}: expected measurements of {model}{at} in other layouts than NHWC on "
                f"{spec.name}, got none; `retune tune {model} --layout auto --out DIR` takes them"
            )
        chosen, totals = found.problem.plan(found.layouts), totals_of(found, network)
        own_sizes = {"sizes": dict(sizes.values)} if sizes.values else {}
        shown.append({"plan": chosen, "totals": totals, **own_sizes})
        if not json:
            _print(chosen, totals, f"layouts of {model}{at} on {spec.model}")
    if json:
        print_json(shown if len(shown) > 1 else shown[0])


def _print(chosen: "LayoutPlan", totals: Sequence["LayoutTotal"], title: str) -> None:
    print_table(_rows(chosen), title)
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
