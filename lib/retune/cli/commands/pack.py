"""`retune pack`: a bundle as one file, to be copied to where it runs."""

from pathlib import Path
from typing import Annotated

import typer

from retune.cli.console import print_line
from retune.cli.options import check_module
from retune.core.errors import InputError
from retune.core.files import check_file

Folder = Annotated[Path, typer.Argument(metavar="bundle", help="Bundle: a folder.")]
File = Annotated[Path, typer.Argument(metavar="file.zip", help="Output file.")]
Sign = Annotated[
    Path | None,
    typer.Option(
        help="Private key that signs it: Ed25519, as openssl writes it. Default: none.",
        show_default=False,
    ),
]


def pack(folder: Folder, file: File, sign: Sign = None) -> None:
    """Write a bundle as one zip file.

    All commands and `Module.load` take it in its place.
    """
    check_module(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a bundle's folder, got a file")
    if file.suffix != ".zip":
        raise InputError(f"{file}: expected a name that ends with .zip")
    check_file("output", file)
    from retune.bundle.format import pack_zip
    from retune.bundle.trust import digest_of, signature_of

    pack_zip(folder, file, signature_of(folder, sign) if sign else None)
    print_line(f"{file}: {file.stat().st_size / 1e6:,.1f} MB, digest {digest_of(file)}")
