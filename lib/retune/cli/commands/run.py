"""`retune run`: a bundle applied to inputs from a file."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retune.cli.console import say
from retune.cli.options import Digest, Module, Trusted, check_module, opened_bundle
from retune.core.errors import InputError
from retune.core.files import check_file

if TYPE_CHECKING:
    import numpy as np

Arrays = Annotated[
    Path, typer.Option("--input", help="Input file: arrays by input name, as numpy's .npz.")
]
Results = Annotated[Path, typer.Option("--output", help="Output file, as .npz.")]
Device = Annotated[
    str | None, typer.Option(help="Device that runs it. Default: the one that it was tuned for.")
]
Isolated = Annotated[
    bool,
    typer.Option(
        "--isolated", help="Run it in a separate process, as `bench` and `verify` always do."
    ),
]


def run(
    module: Module,
    input: Arrays,
    output: Results,
    device: Device = None,
    isolated: Isolated = False,
    trust: Trusted = None,
    digest: Digest = "",
) -> None:
    """Run a bundle on the arrays of an .npz file.

    A bundle is a program: run those you trust.
    """
    check_module(module)
    check_file("--output", output)
    arrays = read_arrays(input)
    from retune.bundle.runtime.module import Module as Bundle
    from retune.core.replacing import replacing

    say("retune: compiling the bundle's kernels, and running it ...")
    with opened_bundle(module, trust, digest) as (bundle, plan):
        if isolated:
            outputs = _run_isolated(bundle, device or plan.device.name, arrays)
        else:
            outputs = Bundle.load(bundle, device).run(arrays)
    with replacing(output) as stream:
        stream.write(arrays_data(outputs))
    shapes = (f"{name} {array.dtype}{list(array.shape)}" for name, array in outputs.items())
    say(f"{output}: {', '.join(shapes)}")


def _run_isolated(
    bundle: Path, device: str, arrays: "Mapping[str, np.ndarray]"
) -> "Mapping[str, np.ndarray]":
    """The outputs of a process of its own. Raises: DeviceError if it hangs or crashes."""
    from retune.bundle.verify.examiner import BUNDLES_ALONE, Examiner

    with Examiner(device, entry=BUNDLES_ALONE) as examiner:
        return examiner.run(bundle, arrays)


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
    except (FileNotFoundError, IsADirectoryError):
        got = "a folder" if path.is_dir() else "no file"
        raise InputError(f"--input {path}: expected an .npz file, got {got}") from None
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
