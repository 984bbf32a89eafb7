"""`retune run`: a bundle applied to inputs from a file."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retune.core.errors import InputError
from retune.core.files import check_file
from retune_cli.console import say
from retune_cli.options import Module, check_module

if TYPE_CHECKING:
    import numpy as np

Arrays = Annotated[Path, typer.Option("--input", help="Arrays by input name, as numpy's .npz.")]
Results = Annotated[Path, typer.Option("--output", help="Where the outputs go, as .npz.")]
Device = Annotated[str | None, typer.Option(help="Default: the device it was tuned for.")]


def run(module: Module, input: Arrays, output: Results, device: Device = None) -> None:
    """Run a bundle on the arrays of an .npz file."""
    check_module(module)
    check_file("--output", output)
    arrays = read_arrays(input)
    from retune.bundle.module import Module as Bundle
    from retune.core.replacing import replacing

    outputs = Bundle.load(module, device).run(arrays)
    with replacing(output) as stream:
        stream.write(arrays_data(outputs))
    shapes = (f"{name} {array.dtype}{list(array.shape)}" for name, array in outputs.items())
    say(f"{output}: {', '.join(shapes)}")


def read_arrays(path: Path) -> "dict[str, np.ndarray]":
    """The arrays of an .npz file by name. Raises: InputError. Nothing is unpickled."""
    import numpy as np

    if path.is_file() and not zipfile.is_zipfile(path):
        raise InputError(
            f"--input {path}: expected an .npz file, got another kind; numpy.savez writes one"
        )
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise InputError(f"--input {path}: expected an .npz file, got no file") from None
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"--input {path}: expected a whole .npz file: {error}") from None
    except ValueError:
        raise InputError(
            f"--input {path}: expected arrays of numbers, got pickled objects, which are not read"
        ) from None


def arrays_data(arrays: "Mapping[str, np.ndarray]") -> bytes:
    """The bytes of an .npz file with these arrays, whatever their names are."""
    import numpy as np

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()
