"""`retune run`: a bundle applied to inputs from a file."""

import io
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

import typer

from retune.cli.console import print_json, print_table, say
from retune.cli.options import (
    Digest,
    Json,
    Module,
    RunsOn,
    Trusted,
    check_module,
    opened_bundle,
)
from retune.core.errors import InputError, reason_of
from retune.core.files import check_ending, check_file

if TYPE_CHECKING:
    import numpy as np

Arrays = Annotated[
    list[str],
    typer.Option(
        "--input",
        help="Input file: numpy's .npz with an array for each input, or .npy. Write NAME=FILE.npy "
        "where there are several inputs. Repeatable.",
    ),
]
Results = Annotated[
    Path | None,
    typer.Option("--output", help="Output file, as .npz. Default: print a summary of the outputs."),
]
_SINGLE = ""
"""Name of the array of an .npy file."""
_LARGEST = 3
"""Elements of an output that a summary shows."""

Isolated = Annotated[
    bool,
    typer.Option(
        "--isolated", help="Run it in a separate process, as `bench` and `verify` always do."
    ),
]


def run(
    module: Module,
    input: Arrays,
    output: Results = None,
    device: RunsOn = None,
    isolated: Isolated = False,
    trust: Trusted = None,
    digest: Digest = "",
    json: Json = False,
) -> None:
    """Run a bundle on arrays from numpy's files.

    A bundle is a program: run those you trust.
    """
    check_module(module)
    if output is not None:
        check_ending(f"--output {output}", output, ".npz")
        check_file("--output", output)
    from retune.bundle.runtime.module import Module as Bundle
    from retune.core.replacing import replacing

    with opened_bundle(module, trust, digest) as (bundle, plan):
        arrays = read_inputs(input, plan.inputs)
        say("retune: compiling the bundle's kernels, and running it ...")
        if isolated:
            outputs = _run_isolated(bundle, device or plan.device.name, arrays)
        else:
            outputs = Bundle.load(bundle, device).run(arrays)
    found = [output_summary(*each) for each in outputs.items()]
    if output is not None:
        with replacing(output) as stream:
            stream.write(arrays_data(outputs))
        shapes = (f"{each['output']} {each['type']}" for each in found)
        say(f"{output}: {', '.join(shapes)}")
    if json:
        print_json(found)
    elif output is None:
        print_table([summary_row(each) for each in found], f"outputs of {module}")


def _run_isolated(
    bundle: Path, device: str, arrays: "Mapping[str, np.ndarray]"
) -> "Mapping[str, np.ndarray]":
    """The outputs of a process of its own. Raises: DeviceError if it hangs or crashes."""
    from retune.bundle.verify.examiner import BUNDLES_ALONE, Examiner

    with Examiner(device, entry=BUNDLES_ALONE) as examiner:
        return examiner.run(bundle, arrays)


class Element(TypedDict):
    """An element of an output.

    It lies there along the one axis that has several elements, or along all axes.
    """

    at: int | list[int]
    value: float


class OutputSummary(TypedDict):
    """What a person wants to know of an output: its type, its range, and its largest elements.

    An output without elements has its type alone.
    """

    output: str
    type: str
    min: NotRequired[float]
    max: NotRequired[float]
    mean: NotRequired[float]
    largest: NotRequired[list[Element]]


def output_summary(name: str, array: "np.ndarray") -> OutputSummary:
    """The summary of one output."""
    kind = f"{array.dtype}{list(array.shape)}"
    if not array.size:
        return {"output": name, "type": kind}
    numbers = array.astype(float).reshape(-1)
    largest = numbers.argsort(kind="stable")[::-1][:_LARGEST].tolist()
    return {
        "output": name,
        "type": kind,
        "min": float(numbers.min()),
        "max": float(numbers.max()),
        "mean": float(numbers.mean()),
        "largest": [{"at": _at(n, array.shape), "value": float(numbers[n])} for n in largest],
    }


def _at(number: int, shape: Sequence[int]) -> int | list[int]:
    if max(shape, default=1) == math.prod(shape):
        return number
    indices: list[int] = []
    for extent in reversed(shape):
        number, index = divmod(number, extent)
        indices.insert(0, index)
    return indices


def summary_row(found: OutputSummary) -> dict[str, str]:
    """The summary as it is printed for people."""
    row: dict[str, Any] = {**found}
    elements: list[Element] = row.pop("largest", [])
    shown = {key: f"{x:.4g}" if isinstance(x, float) else x for key, x in row.items()}
    if elements:
        shown["largest at"] = ", ".join(f"{e['at']} ({e['value']:.4g})" for e in elements)
    return shown


_DAMAGED = (
    *(OSError, EOFError, KeyError, MemoryError, NotImplementedError, OverflowError, RuntimeError),
    *(SyntaxError, TypeError, zipfile.BadZipFile, zlib.error),
)
"""What numpy and zipfile raise for a file whose bytes were changed."""


def read_inputs(given: Sequence[str], names: Sequence[str]) -> "dict[str, np.ndarray]":
    """The arrays of the files that --input names, for inputs of these names.

    Raises: InputError, also for a single array of which it is open which input it is.
    """
    found: dict[str, np.ndarray] = {}
    for text in given:
        name, equals, path = text.rpartition("=")
        if not equals or Path(text).is_file():
            name, path = "", text
        arrays = read_arrays(Path(path))
        if set(arrays) == {_SINGLE}:
            found[_input_of(name, text, names)] = arrays[_SINGLE]
        elif name:
            raise InputError(f"--input {text}: expected an .npy file with one array, got an .npz")
        else:
            found |= arrays
    return found


def _input_of(name: str, text: str, names: Sequence[str]) -> str:
    if name or len(names) == 1:
        return name or names[0]
    raise InputError(
        f"--input {text}: expected the name of its input ({', '.join(names)}); write "
        f"--input {names[0]}={text}"
    )


def read_arrays(path: Path) -> "dict[str, np.ndarray]":
    """The arrays of an .npz file by name, or the one of an .npy file by _SINGLE.

    Raises: InputError. Nothing is unpickled.
    """
    import numpy as np

    single = path.suffix == ".npy"
    if path.is_file() and not (_is_npy(path) if single else zipfile.is_zipfile(path)):
        raise InputError(
            f"--input {path}: expected an .npz or .npy file, got another kind; numpy.savez and "
            "numpy.save write them"
        )
    try:
        if single:
            return {_SINGLE: np.load(path, allow_pickle=False)}
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (FileNotFoundError, IsADirectoryError):
        got = "a folder" if path.is_dir() else "no file"
        raise InputError(f"--input {path}: expected an .npz or .npy file, got {got}") from None
    except _DAMAGED as error:
        why = reason_of(error)
        raise InputError(f"--input {path}: expected a whole .npz or .npy file: {why}") from None
    except ValueError as error:
        if single and not _holds_objects(path):
            raise InputError(f"--input {path}: expected a whole .npy file: {error}") from None
        raise InputError(
            f"--input {path}: expected arrays of numbers, got pickled objects, which are not read"
        ) from None


def _is_npy(path: Path) -> bool:
    """Whether the file begins as numpy writes arrays; an empty or another one does not."""
    import numpy as np

    with path.open("rb") as stream:
        magic = np.lib.format.MAGIC_PREFIX
        return stream.read(len(magic)) == magic


def _holds_objects(path: Path) -> bool:
    """Whether an .npy file's header names objects; one that is cut off in its header does not."""
    import numpy as np

    header = np.lib.format
    with path.open("rb") as stream:
        try:
            old = header.read_magic(stream) == (1, 0)
            read = header.read_array_header_1_0 if old else header.read_array_header_2_0
            return read(stream)[2].hasobject
        except ValueError:
            return False


def arrays_data(arrays: "Mapping[str, np.ndarray]") -> bytes:
    """The bytes of an .npz file with these arrays, whatever their names are."""
    import numpy as np

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()
