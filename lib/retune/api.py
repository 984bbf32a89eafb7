"""The Python interface: what the command line, the flow and other programs call.

`tune_network` does everything for a network, by the chain of `retune.pipeline.chain`. `tune` does
it for one tensor expression or task, and `compile_network` puts such results into a network.
Importing this module imports neither OpenCL nor Prefect.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, ParamSpec

from retune.bundle.build import build_plan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import compare_times
from retune.core.errors import InputError
from retune.core.keys import content_key
from retune.device.opencl.runtime import Device
from retune.device.opening import open_device
from retune.frontend.gguf.folder import import_gguf
from retune.language.generation import Generation
from retune.language.loading import decoder_of
from retune.language.sampling import Sampling
from retune.language.text import Text
from retune.pipeline.calling import InProcess
from retune.pipeline.chain import run_chain
from retune.pipeline.network import ImportedNetwork, import_network
from retune.pipeline.request import TuneRequest, option, options, refuse_earlier, request
from retune.pipeline.results import TuneResult
from retune.pipeline.watch import Progress, watching
from retune.search.program import Tuned, measure, space_for, tune
from retune.search.session import Stop
from retune.search.task import Task

P = ParamSpec("P")

__all__ = [
    "Generation",
    "ImportedNetwork",
    "Module",
    "Sampling",
    "Text",
    "Tuned",
    "compare_times",
    "compile_network",
    "decoder_of",
    "extract_tasks",
    "import_gguf",
    "import_network",
    "measure",
    "space_for",
    "tune",
    "tune_network",
]


def extract_tasks(network: ImportedNetwork) -> tuple[Task, ...]:
    """The distinct tasks to tune, in order of first occurrence.

    Groups without a reduction are left out: data movements and element-wise chains run at memory
    speed by the default schedule.
    """
    return tuple(task for task in network.network.tasks.values() if task.tunable)


def compile_network(
    network: ImportedNetwork, tuned: Sequence[Tuned] = (), *, device: Device | str = "pocl"
) -> Module:
    """The network loaded on the device, with these results instead of the default schedules.

    Raises: InputError if a result is of a task that the network does not have.
    """
    tasks = dict(network.network.tasks)
    for result in tuned:
        if result.task.key not in tasks:
            raise InputError(
                f"{network.network.graph.name}: {result.task.name} is none of its tasks; tune one "
                "of extract_tasks(network)"
            )
        tasks[result.task.key] = result.task
    opened = open_device(device) if isinstance(device, str) else device
    plan = build_plan(
        replace(network.network, tasks=tasks),
        {result.task.key: result.candidate for result in tuned},
        opened.spec,
        model_key=content_key(str(network.onnx), list(tasks)),
        notes={"tuned": ", ".join(result.task.name for result in tuned) or "nothing"},
    )
    return Module(plan, opened)


@request
class _Call(TuneRequest):
    """A request, and what this process has to do with it."""

    progress: Progress | None = option("Called with each event", default=None)
    stop: Stop | None = option("Asked between batches whether to measure no more", default=None)


def _arguments_of(
    kind: Callable[P, _Call],
) -> Callable[[Callable[[_Call], TuneResult]], Callable[P, TuneResult]]:
    """Decorates a function of a request: it takes the arguments that make the request."""

    def decorate(body: Callable[[_Call], TuneResult]) -> Callable[P, TuneResult]:
        def called(*args: P.args, **kwargs: P.kwargs) -> TuneResult:
            refuse_earlier(kwargs)
            return body(kind(*args, **kwargs))

        known = options()
        helps = "\n".join(f"        {name}: {each.help}" for name, each in known.items())
        called.__name__ = called.__qualname__ = body.__name__
        called.__doc__ = f"{body.__doc__}\n    Args:\n{helps}\n"
        parameters = [
            each.replace(annotation=known[name].given) if name in known else each
            for name, each in inspect.signature(kind).parameters.items()
        ]
        made: Any = called
        made.__signature__ = inspect.Signature(parameters, return_annotation=TuneResult)
        return called

    return decorate


@_arguments_of(_Call)
def tune_network(call: _Call) -> TuneResult:
    """Tunes a network and publishes `out/module` and `out/report.html`.

    Doing the same again, or after a kill, redoes nothing that was finished. `progress` is called
    with each event (default: the logger `retune.progress`). When `stop` returns true, no further
    batch is measured, and the bundle is made of what was found.

    Raises: InputError for a model, option or folder that cannot be used, VerifyError if the bundle
    is wrong.
    """
    values = {each.name: getattr(call, each.name) for each in fields(TuneRequest)}
    with watching(call.progress, call.stop):
        return run_chain(TuneRequest(**values), InProcess())
