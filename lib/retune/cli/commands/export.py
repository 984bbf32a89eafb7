"""`retune export`: a bundle for machines on which nothing of retune is installed."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from retune.cli.console import print_json, print_line
from retune.cli.options import Json, Module, check_module
from retune.core.files import check_folder

Folder = Annotated[Path, typer.Option("--c", help="Folder for a C program that runs the bundle.")]


def export(module: Module, c: Folder, json: Json = False) -> None:
    """Write a bundle as a C program.

    Kernels, weights, one .c, one .h and a Makefile.
    """
    check_module(module)
    check_folder("--c", c)
    from retune.bundle.export.loader import needed_loader
    from retune.bundle.export.program import export_c
    from retune.bundle.format import read_bundle

    export_c(read_bundle(module), c)
    size = sum(part.stat().st_size for part in c.iterdir())
    loader = needed_loader()
    make = f"make OPENCL='{loader.link}'" if loader else "make"
    if json:
        print_json({"folder": c, "bytes": size, "make": make})
        return
    print_line(f"{c}: {size / 1e6:,.1f} MB of C99, kernels and weights; build it and run it:")
    print_line(f"  cd {shlex.quote(str(c))} && {make} && ./network --list && ./network")
    if loader:
        print_line("this machine has no OpenCL library of its own: these use the one of pyopencl")
