"""`retune tasks`: what a network consists of, as tensor expressions."""

from pathlib import Path
from typing import TYPE_CHECKING

from retune.cli.console import print_json, print_line, say
from retune.cli.options import Json, check_model
from retune.cli.request import takes_request
from retune.core.errors import InputError
from retune.core.files import check_folder
from retune.core.quantities import counted, flop_text
from retune.pipeline.request import MIXED, TuneRequest

if TYPE_CHECKING:
    from retune.pipeline.network import ImportedNetwork
    from retune.search.task import Task


@takes_request(
    *("model", "device", "precision", "max_deviation", "quantize", "pack_start", "pack_stop"),
    *("calibration", "accuracy_drop", "shapes", "layout"),
    device="",
)
def tasks(request: TuneRequest, json: Json = False) -> None:
    """Print a network's tasks, each as tensor expressions.

    With --device as they are tuned for that device, quantized and packed if that is asked for;
    without it as of the float network on any device.
    """
    model, order = request.model, request.layout
    check_model(model)
    check_folder("RETUNE_CACHE", Path(request.work))
    from retune.api import extract_tasks
    from retune.pipeline.network import order_of
    from retune.pipeline.watch import watching

    with watching(lambda event: say(f"retune: {event.text}")):
        network = _network(request)
    found = extract_tasks(network)
    if (written := order_of(order)) != order:
        say(
            f"retune: --layout {order}: tasks are written in {written}; their layouts "
            f"are measured by `retune tune --layout {order}`, and `retune plan` shows them"
        )
    if json:
        print_json([task.to_json() for task in found])
        return
    for number, task in enumerate(found, 1):
        print_line(f"{number}. {task.name} (x{task.weight})  {_facts(task)}")
        print_line("    " + task.text.strip().replace("\n", "\n    "))
        print_line()
    flops = sum(task.flops * task.weight for task in found)
    for ops in network.network.host_steps:
        print_line(f"on the host: {ops}")
    print_line(f"{counted(len(found), 'task')}, {flop_text(flops)} in one run of {model}")


def _network(request: TuneRequest) -> "ImportedNetwork":
    """Raises: InputError for options that do not go together."""
    from retune.pipeline.network import import_network, open_network, precision_of
    from retune.pipeline.precision import check_precision
    from retune.pipeline.quantization import check_quantization

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
    shapes, work, precision = request.fixed_shapes, Path(request.work), precision_of(request)
    return import_network(request.model, shapes, request.layout, work, precision=precision)


def _facts(task: "Task") -> str:
    shapes = ", ".join("x".join(map(str, shape)) for shape in task.input_shapes)
    output = "x".join(map(str, task.output_shape))
    return f"{flop_text(task.flops)}  {shapes} -> {output}  {task.key[:12]}"
