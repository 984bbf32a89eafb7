"""`retune plan`: where the images of a network should lie, by what was measured before."""

from pathlib import Path
from typing import TYPE_CHECKING

from retune.cli.console import print_json, print_line, print_table
from retune.cli.options import Json, check_model, record_store
from retune.cli.request import takes_request
from retune.core.errors import InputError
from retune.core.files import check_folder
from retune.pipeline.request import TuneRequest

if TYPE_CHECKING:
    from retune.pipeline.layout_plan import LayoutPlan


@takes_request("model", "device", "shapes", "records", "layout_solver")
def plan(request: TuneRequest, json: Json = False) -> None:
    """Print the fastest activation layouts of a network.

    By the records of `retune tune --layout auto`.
    """
    check_model(request.model)
    check_folder("RETUNE_CACHE", Path(request.work))
    store, model = record_store(Path(request.records)), request.model
    from retune.api import import_network
    from retune.device.opening import spec_of
    from retune.pipeline.layouts import plan_of, totals_of
    from retune.search.conditions import network_conditions
    from retune.search.layout.search import FoundLayouts, recorded_problem
    from retune.search.layout.solver import solve

    spec = spec_of(request.device)
    network = import_network(model, dict(request.shapes), "NHWC", Path(request.work)).network
    where = network_conditions(spec, network.tasks.values())
    problem = recorded_problem(network, spec, store, where)
    if not problem.measured:
        raise InputError(
            f"{store.root}: expected measurements of {model} in other layouts than rows on "
            f"{spec.name}, got none; `retune tune {model} --layout auto --out DIR` takes them"
        )
    solution = solve(problem.table)
    found = FoundLayouts(problem=problem, solution=solution, trials=0, unused=0)
    chosen = plan_of(problem.choice(solution.choice), problem)
    totals = totals_of(found, network)
    if json:
        print_json({"plan": chosen, "totals": totals})
        return
    print_table(_rows(chosen), f"layouts of {model} on {spec.model}")
    for total in totals:
        proven = ", proven optimal" if total.optimal else ""
        ratio = total.us / totals[0].us if totals[0].us else 1.0
        copied = f"{total.copies} images copied"
        print_line(f"{total.name:20} {total.us / 1e3:9.3f} ms  {ratio:.3f}x  {copied}{proven}")


def _rows(chosen: "LayoutPlan") -> list[dict[str, object]]:
    kernels: list[dict[str, object]] = [
        {
            "kernel": k.group,
            "reads": k.read,
            "makes": k.made,
            "us": round(k.us, 1) if k.us else None,
            "us in rows": round(k.rows_us, 1) if k.rows_us else None,
        }
        for k in chosen.kernels
    ]
    copies: list[dict[str, object]] = [
        {"kernel": f"copy of {i.image}", "reads": i.made, "makes": ", ".join(i.copies),
         "us": round(i.us, 1), "us in rows": None}
        for i in chosen.images
        if i.copies
    ]  # fmt: skip
    return [*kernels, *copies]
