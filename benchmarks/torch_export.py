"""Writes one architecture as an ONNX file: what a process with torch does for `architectures`.

    PYTHON -m benchmarks.torch_export timm:resnet18 dynamo FILE.onnx

PYTHON has torch and the package that the architecture comes from; it needs neither retune nor an
OpenCL device. Weights are random from a fixed seed, and such that every part of the network counts:
what its author starts with a constant (scales of 1e-6, gains and heads of 0) gets some noise, and
batch norms take their statistics from random data.
"""

import argparse
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.command import parser_of
from benchmarks.torch_architectures import ARCHITECTURES, Architecture, Exporter

SEED = 20190
NOISE = 0.1
"""Deviation of what is added to constant parameters."""


def export(architecture: Architecture, exporter: Exporter, path: Path) -> None:
    """The file is there, whole, when the call returns. Raises: what torch's exporter raises."""
    torch: Any = import_module("torch")
    torch.manual_seed(SEED)
    torch.backends.mha.set_fastpath_enabled(False)  # fused layers that no exporter knows
    example = architecture.make()
    model: Any = runnable(example.model.eval(), example.call)
    with torch.no_grad():
        vary_constants(model)
        if architecture.normalised:
            take_statistics(model, example.inputs)
        unfinished = path.with_name(f".{path.name}")
        options: dict[str, Any] = {"dynamo": True, "external_data": False, "verbose": False}
        if exporter == "legacy":
            options = {"dynamo": False, "opset_version": architecture.opset}
        torch.onnx.export(model, example.inputs, str(unfinished), **options)
    unfinished.replace(path)


def runnable(model: Any, call: Any) -> Any:
    """The model as a module whose outputs are those of the call."""
    if call is None:
        return model
    torch: Any = import_module("torch")

    class Called(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            return call(self.model, *inputs)

    return Called().eval()


def vary_constants(model: Any) -> None:
    """No parameter has the same value everywhere."""
    torch: Any = import_module("torch")
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.numel():
            flat = parameter.flatten()
            if bool((flat == flat[0]).all()):
                parameter.add_(NOISE * torch.randn_like(parameter))


def take_statistics(model: Any, inputs: tuple[Any, ...]) -> None:
    """Each batch norm has the mean and variance of its data in a batch of two random inputs."""
    torch: Any = import_module("torch")
    base = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001
    norms = [m for m in model.modules() if isinstance(m, base)]
    if not norms:
        return
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    model(*(torch.cat((x, x.flip(-1))) for x in inputs))
    for norm in norms:
        norm.eval()


def main() -> None:
    """Writes the file named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("name", help="of an architecture")
    parser.add_argument("exporter", choices=("legacy", "dynamo"))
    parser.add_argument("file", type=Path)
    options: argparse.Namespace = parser.parse_args()
    by_name = {entry.name: entry for entry in ARCHITECTURES}
    warnings.simplefilter("ignore")
    try:
        export(by_name[options.name], options.exporter, options.file)
    except Exception as error:
        raise SystemExit(reason_of(error)) from error


def reason_of(error: BaseException) -> str:
    """The first line of what began it, in one line."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    lines = str(error).strip().splitlines() or ["without a message"]
    return f"{type(error).__name__}: {lines[0]}"


if __name__ == "__main__":
    main()
