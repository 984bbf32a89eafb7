"""Models by the names that users give: a file, `zoo:NAME` or `light:NAME`.

`resolve_model` gives a concrete ONNX file, that other programs read too; `load_model` the graph.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import onnx

from retune.core.config import cache_root
from retune.core.errors import LookupFailed, ModelError
from retune.core.keys import content_key
from retune.core.names import check_model_file, is_built_in
from retune.core.ranges import Extents, Stated
from retune.core.replacing import replacing
from retune.frontend.onnx.importer import Shapes, load_file
from retune.frontend.onnx.inputs import check_elements, input_types
from retune.frontend.zoo import LIGHT, ZOO
from retune.frontend.zoo.calibrate import calibrate
from retune.frontend.zoo.light import randomised
from retune.frontend.zoo.writer import NetWriter, open_axes
from retune.graph.graph import Graph
from retune.proto.file import initializer_names, read_onnx

ZOO_VERSION = 1
"""Part of the cached files' names: bumped when a builder writes something else."""

SEED = 20190
"""Seed of all weights; the data that calibrates them uses it too."""


def load_model(spec: str, shapes: Shapes | None = None, cache_dir: Path | None = None) -> Graph:
    """The graph of a file, `zoo:NAME` or `light:NAME`. Raises: ModelError, LookupFailed."""
    path = resolve_model(spec, cache_dir, shapes)
    return load_file(path, None if spec.startswith("zoo:") else shapes)


def resolve_model(
    spec: str, cache_dir: Path | None = None, shapes: Mapping[str, Sequence[Stated]] | None = None
) -> Path:
    """The ONNX file of the model; zoo and light models are written to `cache_dir` once.

    `shapes` may give a zoo model another batch or image size, or ranges of them: these axes of the
    file are symbols then. Raises: LookupFailed for a name
    that is not known, ModelError for a shape that does not fit.
    """
    folder = cache_dir if cache_dir is not None else cache_root() / "models"
    kind, _, name = spec.partition(":")
    match kind:
        case "zoo":
            _known("zoo", name, ZOO)
            shape = _zoo_shape(name, dict(shapes or {}))
            return _cached(folder, f"zoo-{name}", shape, lambda: _build(name, shape), _open(shape))
        case "light":
            name = _light_name(name)
            return _cached(folder, f"light-{name}", (), lambda: randomised(name, SEED))
        case _:
            return Path(spec)


def check_model(spec: str, shapes: Mapping[str, Sequence[Stated]] | None = None) -> None:
    """Holds after the call: the file is there, or the name is known and may have these shapes.

    Nothing is read or built. Raises: LookupFailed, InputError.
    """
    kind, _, name = spec.partition(":")
    match kind:
        case "zoo":
            _known("zoo", name, ZOO)
            _zoo_shape(name, dict(shapes or {}))
        case "light":
            _light_name(name)
        case _:
            check_model_file(spec)


def check_bound(spec: str) -> None:
    """Holds after the call: no input of the model has an open dimension. Weights are not read.

    Raises: ShapesMissing with shapes that would do; ModelError for a file that is not a model.
    """
    if not is_built_in(spec):
        graph = read_onnx(Path(spec)).graph
        input_types(graph, {}, initializer_names(graph))


def _build(name: str, shape: tuple[Stated, ...]) -> onnx.ModelProto:
    net = NetWriter(name, SEED)
    ZOO[name][0](net, tuple(map(_least, shape)))
    return net.model()


def _open(shape: Sequence[Stated]) -> dict[int, str]:
    """The axes that have ranges, and what they are called."""
    names = _AXES[len(shape)]
    return {axis: names[axis] for axis, extent in enumerate(shape) if isinstance(extent, str)}


_AXES = {
    2: ("batch", "features"),
    3: ("batch", "features", "length"),
    4: ("batch", "channels", "height", "width"),
}
"""Names of the axes of inputs of so many dimensions."""


def _least(stated: Stated) -> int:
    return Extents.of("extent", [stated]).size.least if isinstance(stated, str) else stated


def _zoo_shape(name: str, shapes: dict[str, Sequence[Stated]]) -> tuple[Stated, ...]:
    default = ZOO[name][1]
    stated = {each: ",".join(map(str, shape)) for each, shape in shapes.items()}
    given = tuple(shapes.pop("data", default))
    fits = len(given) == len(default) and min(map(_least, given)) > 0 and given[1] == default[1]
    if shapes or not fits:
        wanted = ",".join(
            ["N", str(default[1]), *("L" if len(default) == 3 else "HW")][: len(default)]
        )
        raise ModelError(
            f"zoo:{name} has one input, data={wanted} with numbers from 1 on (usually "
            f"{','.join(map(str, default))}); got {', '.join(map('='.join, stated.items()))}"
        )
    check_elements(f"zoo:{name}", tuple(map(_least, given)))
    return given


def _light_name(name: str) -> str:
    plain = name.removeprefix("light_")
    by_file = {file: short for short, file in LIGHT.items()}
    plain = by_file.get(plain, plain)
    _known("light", plain, LIGHT)
    return plain


def _known(kind: str, name: str, names: Collection[str]) -> None:
    if name not in names:
        close = get_close_matches(name, names, n=1)
        raise LookupFailed(
            f"{kind}:{name} is not known; "
            f"{f'did you mean {kind}:{close[0]}? N' if close else 'n'}ames: "
            f"{', '.join(sorted(names))}"
        )


def _cached(
    folder: Path,
    stem: str,
    shape: tuple[Stated, ...],
    build: Callable[[], onnx.ModelProto],
    symbols: Mapping[int, str] | None = None,
) -> Path:
    """The file of that stem, built and calibrated if it is not there; written in one step.

    Axes of its inputs among `symbols` are open.
    """
    key = content_key(ZOO_VERSION, SEED, shape)[:8]
    path = folder / f"{stem}-{key}.onnx"
    if path.is_file():
        return path
    model = open_axes(calibrate(build(), SEED), symbols or {})
    with replacing(path) as stream:
        stream.write(model.SerializeToString())
    return path
