"""Samples that a network is calibrated and judged on: read from files, checked, and set apart.

Read `load_samples` first. Samples of an input lie one after another along its first dimension, and
are used in parts of the network's own extent there.
"""

from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile, ZipFile, is_zipfile

import numpy as np

from retune.core.dtypes import as_stored
from retune.core.errors import InputError
from retune.graph.graph import Graph
from retune.ops import Array


def archives(path: Path) -> list[Path]:
    """The .npz files that a path names: the file itself, or all of a folder, by name."""
    return sorted(path.glob("*.npz")) if path.is_dir() else [path]


def check_archives(what: str, path: Path, also: str = "") -> None:
    """Raises: InputError unless there is an .npz file, or a folder of them. Nothing is unpacked.

    `also` says what else the path might have been.
    """
    files = archives(path)
    other = next((file for file in files if not is_zipfile(file)), None)
    if files and other is None:
        return
    got = "another kind of file" if path.is_file() else "nothing there"
    if path.is_dir():
        got = f"a folder in which {other.name} is none" if other else "a folder without any"
    raise InputError(
        f"{what} {path}: expected {also}an .npz file or a folder of them, got {got}; numpy.savez "
        "writes them"
    )


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes that samples have, all of a folder together; none of what cannot be read."""
    found: dict[str, tuple[int, ...]] = {}
    for file in archives(path):
        try:
            with ZipFile(file) as stored:
                shapes = {
                    name.removesuffix(".npy"): _shape(stored, name) for name in stored.namelist()
                }
        except (OSError, ValueError, EOFError, BadZipFile):
            continue
        for name, (count, *rest) in ((n, s) for n, s in shapes.items() if s):
            before, *_ = found.get(name, (0,))
            found[name] = (before + count, *rest)
    return found


def load_samples(path: Path, graph: Graph, *, finite: bool = True) -> dict[str, Array]:
    """The samples of each input, by name: of one .npz file, or of all in a folder, by file name.

    Arrays of other names are left out. Every input has the same number of whole parts; those of a
    scalar are a vector, and inputs without elements have any number. Numbers have to be `finite`.
    Raises: InputError, which says how such a file is made, for what the network does not take.
    """
    files = archives(path)
    if not files:
        raise _bad(path, graph, "a folder with .npz files", "none in it")
    read = [_read(file, graph, finite) for file in files]
    data = {name: np.concatenate([entry[name] for entry in read]) for name in graph.inputs}
    counts = {n: len(data[n]) / e for n in graph.inputs if (e := _extent(graph, n))}
    if len(set(counts.values())) > 1 or any(n < 1 or n % 1 for n in counts.values()):
        got = ", ".join(f"{len(array)} of '{name}'" for name, array in data.items())
        raise _bad(path, graph, "the same number of whole parts for each input, at least one", got)
    return data


def stacked_samples(graph: Graph, data: Mapping[str, Array]) -> dict[str, Array]:
    """The samples along a new first axis: one element of it for each run of the graph."""
    extents = {name: _extent(graph, name) for name in graph.inputs}
    count = min((len(data[name]) // e for name, e in extents.items() if e), default=1)
    return {
        name: data[name][: count * extents[name]].reshape(count, *graph.types[name].shape)
        for name in graph.inputs
    }


def random_samples(graph: Graph, parts: int, seed: int = 0) -> dict[str, Array]:
    """So many parts of standard normal numbers: what they say of ranges is true of nothing real.

    Equal seeds give equal arrays. Raises: InputError for inputs that are not floats.
    """
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for name in graph.inputs:
        entry = graph.types[name]
        if not entry.dtype.is_float:
            raise InputError(
                f"random samples for {graph.name}: expected inputs of floats, got '{name}' of "
                f"{entry.dtype}; {_recipe(graph)}"
            )
        shape = (parts * _extent(graph, name), *entry.shape[1:])
        made[name] = rng.standard_normal(shape, np.float32).astype(entry.dtype.numpy)
    return made


def held_out(
    graph: Graph, data: Mapping[str, Array], share: float = 0.25
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The data without its last parts, and those: the share of all parts, but at least one.

    Of a single part nothing can be set apart: the second mapping then has empty arrays.
    Raises: InputError for a share that is not above 0 and below 1.
    """
    if not 0 < share < 1:
        raise InputError(f"share held out: expected a number above 0 and below 1, got {share:g}")
    parts = min(len(data[name]) // _extent(graph, name) for name in graph.inputs)
    kept = parts - max(int(parts * share), 1) if parts > 1 else parts
    ends = {name: kept * _extent(graph, name) for name in graph.inputs}
    known = {name: data[name][:end] for name, end in ends.items()}
    return known, {name: data[name][end:] for name, end in ends.items()}


def _shape(stored: ZipFile, name: str) -> tuple[int, ...]:
    """That of an array, by its header: arrays may be large. Raises: ValueError."""
    with stored.open(name) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0
        return (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(stream)[0]


def _read(file: Path, graph: Graph, finite: bool) -> dict[str, Array]:
    try:
        with np.load(file, allow_pickle=False) as stored:
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise _bad(file, graph, "an .npz file", "a single array")
            data = {name: stored[name] for name in graph.inputs if name in stored}
            names = ", ".join(stored.files) or "nothing"
    except FileNotFoundError:
        raise _bad(file, graph, "an .npz file or a folder of them", "nothing there") from None
    except (OSError, ValueError, EOFError, BadZipFile):
        raise _bad(file, graph, "an .npz file of arrays", "what cannot be read as one") from None
    for name in graph.inputs:
        if name not in data:
            raise _bad(file, graph, f"an array '{name}'", names)
        entry = graph.types[name]
        array = as_stored(data[name], entry.dtype)
        array = data[name] = array.reshape(-1) if not (entry.shape or array.shape) else array
        if str(array.dtype) != entry.dtype or array.shape[1:] != entry.shape[1:] or not array.ndim:
            raise _bad(
                file, graph, _wanted(graph, name), f"{array.dtype}{[*array.shape]} for '{name}'"
            )
        if finite and entry.dtype.is_float and not np.isfinite(array).all():
            raise _bad(file, graph, f"finite numbers in '{name}'", "infinities or NaN")
    return data


def _extent(graph: Graph, name: str) -> int:
    """Elements of the first dimension in one run; a scalar's samples are a vector."""
    return (graph.types[name].shape or (1,))[0]


def _wanted(graph: Graph, name: str) -> str:
    entry = graph.types[name]
    return f"'{name}' as {entry.dtype}{['N', *entry.shape[1:]]}".replace("'N'", "N")


def _recipe(graph: Graph) -> str:
    arrays = ", ".join(f"{name!r}: ..." for name in graph.inputs)
    wanted = " and ".join(_wanted(graph, name) for name in graph.inputs)
    return f"make one with {wanted} by np.savez('data.npz', **{{{arrays}}})"


def _bad(path: Path, graph: Graph, expected: str, got: str) -> InputError:
    return InputError(
        f"{path}: samples for {graph.name}: expected {expected}, got {got}; {_recipe(graph)}"
    )
