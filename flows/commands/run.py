"""`retune run`: a bundle applied to inputs from a file."""

from pathlib import Path
from typing import Annotated

import typer

from flows.console import say
from flows.options import Module, check_module
from retune.core.errors import InputError

Arrays = Annotated[Path, typer.Option("--input", help="Arrays by input name, as numpy's .npz.")]
Results = Annotated[Path, typer.Option("--output", help="Where the outputs go, as .npz.")]
Device = Annotated[str | None, typer.Option(help="Default: the device it was tuned for.")]


def run(module: Module, input: Arrays, output: Results, device: Device = None) -> None:
    """Run a bundle on the arrays of an .npz file."""
    check_module(module)
    arrays = read_arrays(input)
    import numpy as np

    from retune.bundle.module import Module as Bundle
    from retune.stages.stage import write_atomic

    outputs = Bundle.load(module, device).run(arrays)
    import io

    buffer = io.BytesIO()
    np.savez(buffer, **outputs)
    write_atomic(output, buffer.getvalue())
    say(f"{output}: {', '.join(f'{name} {a.dtype}{list(a.shape)}' for name, a in outputs.items())}")


def read_arrays(path: Path):
    """The arrays of an .npz file by name. Raises: InputError. Nothing is unpickled."""
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as stored:
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise InputError(f"{path}: expected an .npz file, got a single array")
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise InputError(f"--input {path}: expected an .npz file, got no file") from None
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise InputError(
            f"--input {path}: expected an .npz file of plain arrays: {error}"
        ) from None
