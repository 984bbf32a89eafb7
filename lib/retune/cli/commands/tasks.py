"""`retune tasks`: what a network consists of, as tensor expressions."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from retune.cli.console import print_json, print_line, say
from retune.cli.options import Json
from retune.cli.request import takes_request
from retune.core.errors import InputError
from retune.core.files import check_folder
from retune.core.names import check_model_file
from retune.core.quantities import counted, flop_text
from retune.core.ranges import said_of
from retune.pipeline.request import MIXED, TuneRequest

if TYPE_CHECKING:
    from retune.pipeline.network import ImportedNetwork
    from retune.search.task import Task


@takes_request(
    *("model", "device", "precision", "max_deviation", "quantize", "pack_start", "pack_stop"),
    *("calibration", "accuracy_drop", "shapes", "values", "states", "layout"),
    device="",
)
def tasks(request: TuneRequest, json: Json = False) -> None:
    """Print a network's tasks, each as tensor expressions.

    With --device those that are tuned for it, after quantization and packing; without it those of
    the float network. For ranges they are those at the tuned sizes.
    """
    model, order = request.model, request.layout
    check_model_file(model)
    check_folder("RETUNE_CACHE", Path(request.work))
    from retune.api import extract_tasks
    from retune.pipeline.network import order_of
    from retune.pipeline.sizes import tuned_requests
    from retune.pipeline.watch import watching

    if (written := order_of(order)) != order:
        say(
            f"retune: --layout {order}: tasks are written in {written}; their layouts "
            f"are measured by `retune tune --layout {order}`, and `retune plan` shows them"
        )
    rows: list[dict[str, Any]] = []
    with watching(lambda event: say(f"retune: {event.text}")):
        for sizes, own in tuned_requests(request):
            with said_of(sizes):
                network = _network(own)
            if json:
                at = {"sizes": dict(sizes.values)} if sizes.values else {}
                rows += (task.to_json() | at for task in extract_tasks(network))
            else:
                _print(network, model, str(sizes))
    if json:
        print_json(rows)


def _print(network: "ImportedNetwork", model: str, sizes: str) -> None:
    """The tasks of the network at these sizes; of fixed shapes there are none."""
    from retune.api import extract_tasks

    found = extract_tasks(network)
    if sizes:
        print_line(f"at {sizes}:")
        print_line()
    for number, task in enumerate(found, 1):
        print_line(f"{number}. {task.name} (x{task.weight})  {_facts(task)}")
        print_line("    " + task.text.strip().replace("\n", "\n    "))
        print_line()
    flops = sum(task.flops * task.weight for task in found)
    for ops in network.network.host_steps:
        print_line(f"on the host: {ops}")
    at = f" at {sizes}" if sizes else ""
    print_line(f"{counted(len(found), 'task')}, {flop_text(flops)} in one run of {model}{at}")


def _network(request: TuneRequest) -> "ImportedNetwork":
    """Raises: InputError for options that do not go together."""
    from retune.pipeline.network import import_network, open_network, precision_of
    from retune.pipeline.precision import check_precision
    from retune.pipeline.quantization import check_quantization
    from retune.pipeline.sizes import fixed_inputs

    check_precision(request)
    if request.device:
        check_quantization(request)
        return open_network(request)
    if request.quantize is not None:
        raise InputError(
            f"--quantize {request.quantize.scheme}: expected --device beside it, got none; the "
            "types of a quantized network follow from the device"
        )
    if request.precision == MIXED:
        raise InputError(
            f"--precision {MIXED}: expected --device beside it, got none; the types of layers "
            "follow from the device"
        )
    check_quantization(request)
    stated, work = fixed_inputs(request), Path(request.work)
    return import_network(
        request.model,
        stated.shapes,
        request.layout,
        work,
        values=stated.values,
        states=request.states,
        precision=precision_of(request),
    )


def _facts(task: "Task") -> str:
    shapes = ", ".join("x".join(map(str, shape)) for shape in task.input_shapes)
    output = "x".join(map(str, task.output_shape))
    return f"{flop_text(task.flops)}  {shapes} -> {output}  {task.key[:12]}"
