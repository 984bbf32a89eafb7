"""`retune vta`: modules of the VTA accelerator, read and simulated."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retune.cli.console import print_json, print_line, print_table, rounded
from retune.cli.options import Json
from retune.core.errors import InputError
from retune.core.files import check_ending, check_file
from retune.core.replacing import replacing

if TYPE_CHECKING:
    from retune.targets.vta.module import VtaModule

app = typer.Typer(
    help="Read and simulate modules of the VTA accelerator.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Module = Annotated[Path, typer.Argument(metavar="MODULE.npz", help="Module: a file.")]
Modules = Annotated[
    list[Path], typer.Argument(metavar="MODULE.npz", help="Modules: files, or folders of them.")
]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture", metavar="FILE.svg", help="Picture of it as well: an SVG file. Default: none."
    ),
]


@app.command("disasm")
def disasm(
    module: Module,
    uops: Annotated[bool, typer.Option("--uops", help="Print the micro-ops instead.")] = False,
) -> None:
    """Print a module's instructions, or its micro-ops."""
    from retune.targets.vta.assembly import disassemble, disassemble_uops

    loaded = _load(module)
    text = (
        disassemble_uops(loaded.micro_ops)
        if uops
        else disassemble(loaded.instructions, numbered=True)
    )
    print_line(f"# {loaded.name} for {loaded.config.name}\n{text}".rstrip("\n"))


@app.command("simulate")
def simulate(module: Module, picture: Picture = None, json: Json = False) -> None:
    """Print the cycles of a module, by queue."""
    _check_picture(picture)
    from retune.report.vta import queue_chart
    from retune.targets.vta import timing

    loaded = _load(module)
    found = timing.simulate(loaded)
    facts = {
        "module": loaded.name,
        "config": loaded.config.name,
        "instructions": len(loaded.words),
        "micro_ops": len(loaded.uops),
        "cycles": found.cycles,
        "time_us": found.time_us,
        "gops": found.gops,
        "gemm_utilization": found.utilization,
        "read_bytes": found.costs.read_bytes,
        "written_bytes": found.costs.written_bytes,
    }
    if picture is not None:
        _write(picture, queue_chart(found))
    if json:
        print_json({**facts, "busy_cycles": found.busy})
        return
    print_table([{"fact": n, "value": f"{v:,.4g}" if isinstance(v, float) else v}
                 for n, v in facts.items()])  # fmt: skip
    busy = [
        {"queue": name, "busy cycles": spent, "share": spent / max(1, found.cycles)}
        for name, spent in found.busy.items()
    ]
    print_table(rounded(busy, 3), "queues")
    if picture is not None:
        print_line(f"{picture}: the queues over time")


@app.command("roofline")
def roofline(modules: Modules, picture: Picture = None, json: Json = False) -> None:
    """Print whether memory or the GEMM core bounds modules, and how near they come to it."""
    _check_picture(picture)
    from retune.report.vta import Layer, roofline_chart
    from retune.targets.vta.timing import simulate as simulate_module

    loaded = [_load(path) for given in modules for path in _files(given)]
    config = loaded[0].config
    others = sorted(_variant(item) for item in loaded if item.config != config)
    if others:
        raise InputError(
            f"expected modules of one variant and board, got {_variant(loaded[0])} and {others[0]}"
        )
    layers = [Layer.of(simulate_module(item)) for item in loaded]
    if picture is not None:
        _write(picture, roofline_chart(layers, config))
    rows = [
        {
            "module": layer.name,
            "ops per byte": layer.ops_per_byte,
            "bound": layer.bound(config),
            "GOPS": layer.gops,
            "roof": min(config.peak_gops, layer.ops_per_byte * config.gbytes_per_s),
        }
        for layer in layers
    ]
    if json:
        print_json({"config": config.to_dict(), "layers": rows})
        return
    print_table(rounded(rows), f"{config.name}, {config.peak_gops:g} GOPS")
    if picture is not None:
        print_line(f"{picture}: the roofline")


def _variant(module: "VtaModule") -> str:
    return f"{module.config.name} ({module.config.target})"


def _load(path: Path) -> "VtaModule":
    from retune.targets.vta.module import VtaModule

    if not path.is_file():
        got = "a folder" if path.is_dir() else "no file"
        raise InputError(f"{path}: expected the file of a VTA module (.npz), got {got}")
    return VtaModule.load(path)


def _files(path: Path) -> list[Path]:
    """The path, or the modules in the folder. Raises: InputError if it has none."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.npz"))
    if not found:
        raise InputError(f"{path}: expected a folder with modules (*.npz), got none in it")
    return found


def _check_picture(picture: Path | None) -> None:
    if picture is None:
        return
    check_ending(f"--picture {picture}", picture, ".svg")
    check_file("--picture", picture)


def _write(picture: Path, svg: str) -> None:
    from retune.report.vta import as_file

    with replacing(picture) as stream:
        stream.write(as_file(svg).encode())
