"""What a user calls a model: a file, `zoo:NAME` or `light:NAME`.

`resolve_model` gives a concrete ONNX file, that other programs read too; `load_model` the graph.
"""

from collections.abc import Callable, Collection
from difflib import get_close_matches
from pathlib import Path

import onnx

from retune.core.config import cache_root
from retune.core.dims import is_fixed
from retune.core.errors import LookupFailed, ModelError
from retune.core.keys import content_key
from retune.core.replacing import replacing
from retune.frontend.onnx.importer import Shapes, load_file
from retune.frontend.onnx.inputs import check_elements, with_dims
from retune.frontend.zoo import LIGHT, ZOO
from retune.frontend.zoo.calibrate import calibrate
from retune.frontend.zoo.light import randomised
from retune.frontend.zoo.writer import NetWriter
from retune.graph.graph import Graph

ZOO_VERSION = 1
"""Part of the cached files' names: bumped when a builder writes something else."""

SEED = 20190
"""Seed of all weights; the data that calibrates them uses it too."""


def load_model(spec: str, shapes: Shapes | None = None, cache_dir: Path | None = None) -> Graph:
    """The graph of a file, `zoo:NAME` or `light:NAME`. Raises: ModelError, LookupFailed."""
    path = resolve_model(spec, cache_dir, shapes)
    return load_file(path, shapes)


def resolve_model(spec: str, cache_dir: Path | None = None, shapes: Shapes | None = None) -> Path:
    """The ONNX file of the model; zoo and light models are written to `cache_dir` once.

    `shapes` may give a zoo model another batch or image size, or leave them open. Raises:
    LookupFailed for a name that is not known, ModelError for a shape that does not fit.
    """
    folder = cache_dir if cache_dir is not None else cache_root() / "models"
    kind, _, name = spec.partition(":")
    match kind:
        case "zoo":
            _known("zoo", name, ZOO)
            shape = _zoo_shape(name, with_dims(shapes or {}))
            fixed = {} if all(map(is_fixed, shape)) else {"data": ZOO[name][1]}
            return _cached(
                folder, f"zoo-{name}", shape, lambda: calibrate(_build(name, shape), SEED, fixed)
            )
        case "light":
            name = _light_name(name)
            return _cached(
                folder, f"light-{name}", (), lambda: calibrate(randomised(name, SEED), SEED)
            )
        case _:
            return Path(spec)


def check_model(spec: str, shapes: Shapes | None = None) -> None:
    """Holds after the call: the file is there, or the name is known and may have these shapes.

    Nothing is read or built. Raises: LookupFailed, ModelError.
    """
    kind, _, name = spec.partition(":")
    match kind:
        case "zoo":
            _known("zoo", name, ZOO)
            _zoo_shape(name, with_dims(shapes or {}))
        case "light":
            _light_name(name)
        case _ if not Path(spec).is_file():
            got = "a folder" if Path(spec).is_dir() else "no file"
            raise ModelError(f"{spec}: expected an ONNX file, zoo:NAME or light:NAME, got {got}")
        case _:
            pass


def _build(name: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    net = NetWriter(name, SEED)
    ZOO[name][0](net, shape)
    return net.model()


def _zoo_shape(name: str, shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    default = ZOO[name][1]
    given = shapes.pop("data", default)
    positive = all(extent > 0 for extent in given)
    fits = len(given) == len(default) and positive and given[1] == default[1]
    if shapes or not fits:
        wanted = ",".join(
            ["N", str(default[1]), *("L" if len(default) == 3 else "HW")][: len(default)]
        )
        raise ModelError(
            f"zoo:{name} has one input, data={wanted} (usually {','.join(map(str, default))}); "
            f"got {', '.join([*shapes, 'data=' + ','.join(map(str, given))])}"
        )
    check_elements(f"zoo:{name}", given)
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
    folder: Path, stem: str, shape: tuple[int, ...], build: Callable[[], onnx.ModelProto]
) -> Path:
    """The file of that stem, built and calibrated if it is not there; written in one step."""
    key = content_key(ZOO_VERSION, SEED, shape)[:8]
    path = folder / f"{stem}-{key}.onnx"
    if path.is_file():
        return path
    with replacing(path) as stream:
        stream.write(build().SerializeToString())
    return path
