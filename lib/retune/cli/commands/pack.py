"""`retune pack`: a bundle as one file, to be copied to where it runs."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from retune.cli.console import print_json, print_line, say
from retune.cli.options import Json, check_module, device_names
from retune.core.errors import InputError
from retune.core.files import check_ending, check_file

Folder = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Bundle: a folder.")]
File = Annotated[Path, typer.Argument(metavar="FILE.zip", help="Bundle to write, as one file.")]
Sign = Annotated[
    Path | None,
    typer.Option(
        help="Private key that signs it: Ed25519, as openssl writes it. Default: none.",
        show_default=False,
    ),
]


WithBinaries = Annotated[
    bool,
    typer.Option(
        "--with-binaries",
        help="Add the programs, compiled for the device here, so that loading compiles nothing. "
        "Other devices and drivers compile the source.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        help="Device to compile for. Default: the one that it was tuned for.",
        autocompletion=device_names,
    ),
]


def pack(
    folder: Folder,
    file: File,
    sign: Sign = None,
    with_binaries: WithBinaries = False,
    device: Device = None,
    json: Json = False,
) -> None:
    """Write a bundle as one zip file.

    All commands and `Module.load` take the file instead of the folder.
    """
    check_module(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a bundle's folder, got a file")
    check_ending(str(file), file, ".zip")
    check_file("output", file)
    if device and not with_binaries:
        raise InputError(f"--device {device}: expected --with-binaries beside it")
    from retune.bundle.trust import digest_of

    with TemporaryDirectory() as work:
        if with_binaries:
            folder = _with_binaries(folder, Path(work) / "bundle", device)
        _write(folder, file, sign)
    size, digest = file.stat().st_size, digest_of(file)
    if json:
        print_json({"file": file, "bytes": size, "digest": digest})
    else:
        print_line(f"{file}: {size / 1e6:,.1f} MB, digest {digest}")


def _write(folder: Path, file: Path, sign: Path | None) -> None:
    from retune.bundle.format import pack_zip
    from retune.bundle.trust import signature_of

    pack_zip(folder, file, signature_of(folder, sign) if sign else None)


def _with_binaries(folder: Path, copy: Path, device: str | None) -> Path:
    """The bundle, loaded on the device, with the programs of that.

    Raises: InputError if the driver gives none.
    """
    from retune.bundle.format import add_binaries
    from retune.bundle.runtime.module import Module
    from retune.device.opencl.binaries import Binaries

    binaries = Binaries(collects=True)
    module = Module.load(folder, device, binaries)
    if not binaries.kept:
        raise InputError(
            f"--with-binaries: expected compiled programs from {module.device.spec.name}, got "
            "none; its driver has none to give, pack the bundle without"
        )
    size = sum(map(len, binaries.kept.values()))
    say(f"compiled for {module.device.spec.fingerprint}: {size / 1e6:,.1f} MB")
    return add_binaries(folder.resolve(), copy, binaries.kept)
