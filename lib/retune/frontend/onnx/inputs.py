"""The inputs and outputs of an ONNX model: their types, open dimensions bound by the user.

Read `input_types`, and `open_inputs` for extents and values that stay open. A symbol such as
`batch` has one extent wherever it stands, so that the shape of one input may bind dimensions of
others. Whatever is left open is asked for once, for all inputs.
"""

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import TypeVar

import onnx

from retune.core.dims import SizeValues, at, dim_of, fixed_value, is_fixed, least, most
from retune.core.dtypes import INT32, DType, TensorType
from retune.core.errors import ModelError, ShapesMissing
from retune.core.ranges import Extents, Stated, is_open
from retune.core.states import states_among
from retune.proto.file import element_type

T = TypeVar("T")

Shapes = Mapping[str, Sequence[int]]
"""Input name -> shape, for the dimensions that a model leaves open; or symbol -> its extent. These
may be Dims: the network is imported for all of their values."""

MOST_ELEMENTS = 2**31 - 1
"""Of an input: kernels number elements by 32 bits (`codegen.widths`)."""

_UNNAMED = "?"
"""A dimension without extent and symbol."""

_IMAGE_EXTENT, _OTHER_EXTENT = 224, 128
"""What the example of a shape has for height and width, and for lengths."""


def input_types(
    graph: onnx.GraphProto, shapes: Shapes, stored: Collection[str]
) -> dict[str, TensorType]:
    """The type of each input that is not `stored` in the file, in order.

    Raises: ShapesMissing if `shapes` leave dimensions open, naming all of them and an example.
    ModelError for inputs that are no tensors of a known type, and for shapes that do not fit.
    """
    entries = [entry for entry in graph.input if entry.name not in stored]
    types: dict[str, DType] = {e.name: _element_type(e, "input") for e in entries}
    symbols, shapes = _symbols_apart(entries, shapes)
    bound = _extents(entries, symbols, shapes)
    if missing := [e for e in entries if e.name not in shapes and not _is_bound(e, bound)]:
        raise _missing(missing, bound)
    found = {entry.name: _shape(entry, shapes, bound) for entry in entries}
    for name, shape in found.items():
        check_elements(f"input '{name}'", shape)
    return {name: TensorType(shape, types[name]) for name, shape in found.items()}


class Symbols:
    """The symbols of inputs that have some shapes, and the types of inputs where they are others.

    Those that are sums of others, such as the length of a decoder's mask, follow from these.
    """

    def __init__(self, graph: onnx.GraphProto, shapes: Shapes, stored: Collection[str]) -> None:
        """`shapes` are of all inputs that are not `stored`.

        Raises: ModelError if they do not fit.
        """
        self._entries = [entry for entry in graph.input if entry.name not in stored]
        self._types = {e.name: _element_type(e, "input") for e in self._entries}
        self._shapes = shapes
        bound = _extents(self._entries, {}, shapes)
        self.extents = {
            symbol: extent
            for symbol, extent in bound.items()
            if symbol not in _sums(self._entries, {k: v for k, v in bound.items() if k != symbol})
        }
        """Of each symbol that is not a sum."""

    def at(self, name: str, axis: int) -> str:
        """The symbol at that axis of an input; '' if its extent is fixed or follows from others."""
        (entry,) = (entry for entry in self._entries if entry.name == name)
        dim = _dims(entry)[axis] if _has_rank(entry) else _UNNAMED
        return dim if isinstance(dim, str) and dim in self.extents else ""

    def types(self, changed: Mapping[str, int]) -> dict[str, TensorType]:
        """The types of inputs where these symbols have other extents."""
        bound = {**self.extents, **changed}
        bound |= _sums(self._entries, bound)
        found: dict[str, TensorType] = {}
        for entry in self._entries:
            dims = _dims(entry) if _has_rank(entry) else [_UNNAMED] * len(self._shapes[entry.name])
            pairs = zip(dims, self._shapes[entry.name], strict=True)
            shape = tuple(bound.get(d, own) if isinstance(d, str) else d for d, own in pairs)
            found[entry.name] = TensorType(shape, self._types[entry.name])
        return found


@dataclass(frozen=True, slots=True)
class OpenInputs:
    """What a user states of inputs: shapes and values, which may depend on sizes."""

    shapes: Mapping[str, tuple[int, ...]]
    """Of inputs and symbols."""
    values: Mapping[str, tuple[int, ...]]
    """Of inputs of integers: what their elements are, in order."""
    extents: tuple[Extents, ...] = ()
    """The sizes, in the order of their names."""

    def tuned_once(self, names: Collection[str]) -> "OpenInputs":
        """The same, with a single value to tune for of the sizes of these names: a middle one."""
        extents = tuple(
            replace(each, tuned=((middle, 1.0),)) if each.size.name in names else each
            for each in self.extents
            for middle in [each.size.values[len(each.size.values) // 2]]
        )
        return replace(self, extents=extents)

    def at(self, values: SizeValues) -> "OpenInputs":
        """The same for these sizes, numbers or Dims."""
        return OpenInputs(_at(self.shapes, values), _at(self.values, values))

    @property
    def at_hand(self) -> "OpenInputs":
        """The same with numbers for the sizes that have a single value by what is assumed
        beforehand."""
        values: dict[str, int] = {}
        for each in self.extents:
            value = fixed_value(each.size)
            values[each.size.name] = dim_of(each.size) if value is None else value
        return self.at(values)


def _at(shapes: Mapping[str, tuple[int, ...]], values: SizeValues) -> dict[str, tuple[int, ...]]:
    return {name: tuple(at(e, values) for e in shape) for name, shape in shapes.items()}


def open_inputs(
    graph: onnx.GraphProto,
    shapes: Mapping[str, Sequence[Stated]],
    values: Mapping[str, Sequence[Stated]],
    stored: Collection[str] = (),
) -> OpenInputs:
    """What is stated of the inputs and symbols of a network.

    A size has the name of the symbol that the model has there, of the input and its axis, or of the
    input and its element if it has several, in letters, digits and underscores.
    Raises: ModelError for numbers that state no range, for a size with two ranges, and for values
    of what is not an input of integers.
    """
    entries = {entry.name: entry for entry in graph.input if entry.name not in stored}
    sizes = _Sizes()
    found = _open_shapes(entries.values(), shapes, sizes)
    stated: dict[str, tuple[int, ...]] = {}
    for name, elements in values.items():
        count = _count_of_values(name, entries, found)
        own = _statements(name, elements, count)
        stated[name] = tuple(
            sizes.of((name, number), f"{name}_{number}" if count > 1 else name, each, "--value")
            for number, each in enumerate(own)
        )
    return OpenInputs(found, stated, sizes.ordered)


def shapes_of_samples(
    graph: onnx.GraphProto, shapes: Shapes, samples: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """The shapes at which arrays of samples fit the network: their extents where the file leaves
    them open, and along the first axis, on which samples lie, what divides their number."""
    found = {name: tuple(shape) for name, shape in shapes.items()}
    for entry in graph.input:
        own, given, dims = found.get(entry.name, ()), samples.get(entry.name, ()), _dims(entry)
        if not len(own) == len(given) == len(dims):
            continue  # reading the samples says what is wrong
        made = [
            g if isinstance(dim, str) else e for e, g, dim in zip(own, given, dims, strict=True)
        ]
        made[:1] = [gcd(n, count) for n, count in zip(own[:1], made[:1], strict=True)]
        found[entry.name] = tuple(made)
    return found


def lengths_of_states(graph: onnx.GraphProto, stated: Sequence[str]) -> set[str]:
    """The symbols that are lengths of states: those of their inputs along axes on which the outputs
    are longer, as far as the file says.

    All lengths pass in a session, and work is proportional to them.
    """
    inputs, outputs = ({e.name: _dims(e) for e in part} for part in (graph.input, graph.output))
    found: set[str] = set()
    for state, _ in states_among(stated, [*inputs], [*outputs]):
        pairs = zip(inputs[state.input], outputs[state.output], strict=False)
        found |= {a for a, b in pairs if isinstance(a, str) and a != b} - {_UNNAMED}
    return found


class _Sizes:
    """The sizes that are stated so far, each with one range."""

    def __init__(self) -> None:
        self._found: dict[str, Extents] = {}
        self._names: dict[Hashable, str] = {}

    def of(self, key: Hashable, wanted: str, stated: Sequence[Stated], option: str) -> int:
        """What is stated of the symbol or element with that key: a number, or one of a size.

        Raises: ModelError.
        """
        if len(stated) == 1 and isinstance(stated[0], int):
            return stated[0]
        name = self._names.setdefault(key, _size_name(wanted, self._names.values()))
        try:
            extents = Extents.of(name, stated)
            if extents.size.most > INT32.limits[1]:
                raise ValueError(f"sizes of at most {INT32.limits[1]}")
        except ValueError as error:
            raise ModelError(f"{option} {wanted}={_listed(stated)}: expected {error}") from None
        if (known := self._found.setdefault(name, extents)) != extents:
            raise ModelError(
                f"'{name}' has the ranges {known.size} and {extents.size}; expected one for "
                f"all inputs; write {option} {extents.size}"
            )
        return extents.dim

    @property
    def ordered(self) -> tuple[Extents, ...]:
        """All of them, by name."""
        return tuple(sorted(self._found.values(), key=lambda each: each.size.name))


def _open_shapes(
    entries: Collection[onnx.ValueInfoProto], stated: Mapping[str, Sequence[Stated]], sizes: _Sizes
) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs and symbols, in terms of sizes. Raises: ModelError."""
    inputs = {e.name: _dims(e) if _has_rank(e) else [] for e in entries}
    symbols = {dim for dims in inputs.values() for dim in dims if isinstance(dim, str)}
    shapes: dict[str, tuple[int, ...]] = {}
    for key, extents in _by_symbol(stated, symbols, inputs).items():
        if key in symbols - inputs.keys() - {_UNNAMED} and (len(extents) > 1 or is_open(extents)):
            shapes[key] = (sizes.of(key, key, extents, "--shape"),)
            continue
        dims = [*inputs.get(key, ()), *[_UNNAMED] * len(extents)]
        own = (
            dim if isinstance(dim, str) and dim != _UNNAMED else f"{key}_{axis}"
            for axis, dim in enumerate(dims)
        )
        shapes[key] = tuple(
            sizes.of(symbol, symbol, [extent], "--shape")
            for symbol, extent in zip(own, extents, strict=False)
        )
    return shapes


def _count_of_values(name: str, entries: Mapping[str, onnx.ValueInfoProto], shapes: Shapes) -> int:
    """How many elements the input has whose values are stated.

    Raises: ModelError if it is not an input of integers, or if its shape is open.
    """
    where = f"--value {name}"
    entry = entries.get(name)
    if entry is None:
        symbols = {dim for e in entries.values() for dim in _dims(e)}
        if name in symbols - {_UNNAMED}:
            raise ModelError(
                f"{where}: expected an input, got the dimension '{name}' of inputs; write --shape "
                f"{name}=1..8"
            )
        raise ModelError(f"{where}: expected an input of integers{_integer_inputs(entries)}")
    kind = _element_type(entry, "input")
    if kind.is_float:
        raise ModelError(
            f"{where}: expected an input of integers, got one of {kind}{_integer_inputs(entries)}"
        )
    bound = {key: extents[0] for key, extents in shapes.items() if len(extents) == 1}
    dims = shapes.get(name, _dims(entry)) if _has_rank(entry) else shapes.get(name, (_UNNAMED,))
    known = [bound.get(dim, _UNNAMED) if isinstance(dim, str) else dim for dim in dims]
    extents = [e for e in known if not isinstance(e, str) and is_fixed(e)]
    if len(extents) < len(known):
        raise ModelError(
            f"{where}: expected an input of a fixed number of elements, got the shape "
            f"{_listed(known)}; write --shape {name}={_listed([1] * len(known))} beside it"
        )
    return prod(extents)


def _integer_inputs(entries: Mapping[str, onnx.ValueInfoProto]) -> str:
    kinds = {name: _element_type(entry, "input") for name, entry in entries.items()}
    named = [name for name, kind in kinds.items() if not kind.is_float]
    return f"; these are {', '.join(named)}" if named else "; the network has none"


def _statements(name: str, stated: Sequence[Stated], count: int) -> list[Sequence[Stated]]:
    """What is stated of each element: the same for all, or one after the other.

    Raises: ModelError for another number of them.
    """
    if count == 1 or len(stated) == 1:
        return [stated] * count
    if len(stated) == count:
        return [[each] for each in stated]
    raise ModelError(
        f"--value {name}={_listed(stated)}: expected one range, or one for each of {count} "
        f"elements, got {len(stated)}"
    )


def _size_name(symbol: str, taken: Collection[str]) -> str:
    """The symbol in letters, digits and underscores, as no other one is called."""
    name = re.sub(r"\W", "_", symbol, flags=re.ASCII)
    name = f"n{name}" if not name or name[0].isdigit() else name
    while name in taken:
        name += "_"
    return name


def check_elements(what: str, shape: Sequence[int]) -> None:
    """Raises: ModelError for a shape with more elements than a kernel can number."""
    if most(prod(shape)) > MOST_ELEMENTS:
        raise ModelError(
            f"{what}: expected a shape of at most {MOST_ELEMENTS} elements, got {_listed(shape)}"
        )


def check_values(types: Mapping[str, TensorType], values: Shapes) -> None:
    """Raises: ModelError for values that are not those of an input of so many integers."""
    for name, elements in values.items():
        kind = types.get(name)
        whole = kind is not None and not kind.dtype.is_float and kind.fixed
        if kind is None or not whole or kind.elements != len(elements):
            raise ModelError(
                f"values are given for '{name}', which is {kind or 'not an input'}; expected an "
                f"input of {len(elements)} integers"
            )
        for element in elements:
            low, high = (kind.dtype if is_fixed(element) else INT32).limits
            if least(element) < low or most(element) > high:
                raise ModelError(
                    f"values are given for '{name}', which is {kind}; expected them from {low} to "
                    f"{high}; got {element} from {least(element)} to {most(element)}"
                )


def check_outputs(graph: onnx.GraphProto) -> None:
    """Holds after the call: no output is stated to be of a type that a network cannot return.

    Raises: ModelError naming the output.
    """
    for entry in graph.output:
        if entry.type.HasField("tensor_type") and entry.type.tensor_type.elem_type:
            _element_type(entry, "output")


def _element_type(entry: onnx.ValueInfoProto, side: str) -> DType:
    where = f"{side} '{entry.name}'"
    if not entry.type.HasField("tensor_type"):
        kind = entry.type.WhichOneof("value") or "nothing"
        raise ModelError(
            f"{where}: expected a tensor, got {kind.removesuffix('_type')}; export without maps "
            "(scikit-learn: options={'zipmap': False}, LightGBM and XGBoost: zipmap=False), or cut "
            "the model before them"
        )
    if entry.type.tensor_type.elem_type == onnx.TensorProto.STRING:
        raise ModelError(
            f"{where}: expected numbers, got strings; encode them before the model "
            "(OrdinalEncoder), train with integer labels, and export the part between"
        )
    return element_type(entry.type.tensor_type.elem_type, where)


def _dims(entry: onnx.ValueInfoProto) -> list[int | str]:
    """Each dimension as its extent, or as its symbol ('?' without one, or if negative)."""
    return [
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value >= 0
        else dim.dim_param or _UNNAMED
        for dim in entry.type.tensor_type.shape.dim
    ]


def _has_rank(entry: onnx.ValueInfoProto) -> bool:
    return entry.type.tensor_type.HasField("shape")


def _symbols_apart(
    entries: Sequence[onnx.ValueInfoProto], shapes: Shapes
) -> tuple[dict[str, int], dict[str, Sequence[int]]]:
    """The extents that are given for symbols, and the shapes that are given for inputs.

    A name may be both a symbol and an input. It is the symbol if that alone fits: one extent, and
    an input of another rank.
    """
    symbols = {dim for entry in entries for dim in _dims(entry) if isinstance(dim, str)}
    vectors = {e.name for e in entries if not _has_rank(e) or len(_dims(e)) == 1}
    shapes = _by_symbol(shapes, symbols, {entry.name for entry in entries})
    bound = {
        key: extents[0]
        for key, extents in shapes.items()
        if key in symbols - vectors - {_UNNAMED} and len(extents) == 1 and extents[0] >= 0
    }
    return bound, {key: shape for key, shape in shapes.items() if key not in bound}


def _by_symbol(
    stated: Mapping[str, T], symbols: Collection[str], inputs: Collection[str]
) -> dict[str, T]:
    """What is stated, by the symbols of the file: they may be written as sizes are printed."""
    printed = {_size_name(symbol, ()): symbol for symbol in symbols}
    own = {*symbols, *inputs}
    return {key if key in own else printed.get(key, key): each for key, each in stated.items()}


def _extents(
    entries: Sequence[onnx.ValueInfoProto], symbols: Mapping[str, int], shapes: Shapes
) -> dict[str, int]:
    """The extents of symbols by those given for them and by shapes of inputs.

    Raises: ModelError where they contradict.
    """
    names, bound = {entry.name for entry in entries}, dict(symbols)
    if unknown := sorted(set(shapes) - names):
        raise ModelError(
            f"a shape is given for '{', '.join(unknown)}', which is not an input of the network; "
            f"its inputs are {', '.join(entry.name for entry in entries) or 'none'}"
            f"{_open_dimensions(entries)}"
        )
    for entry in entries:
        if entry.name in shapes:
            _bind(entry, tuple(shapes[entry.name]), bound)
    return bound | _sums(entries, bound)


def _open_dimensions(entries: Sequence[onnx.ValueInfoProto]) -> str:
    symbols = {d: None for e in entries for d in _dims(e) if isinstance(d, str) and d != _UNNAMED}
    return f", and their open dimensions are {', '.join(symbols)}" if symbols else ""


def _sums(entries: Sequence[onnx.ValueInfoProto], bound: Mapping[str, int]) -> dict[str, int]:
    """The extents of symbols that nothing binds and that are sums of others.

    Exporters write such symbols as `past + sequence`. A decoder's mask is as long as its cache and
    the new tokens together, whatever its symbol is called.
    """
    found: dict[str, int] = {}
    for symbol in {dim for e in entries for dim in _dims(e) if isinstance(dim, str)} - {*bound}:
        parts = [part.strip() for part in symbol.split("+")]
        if len(parts) > 1 and all(part in bound or part.isdecimal() for part in parts):
            extents = [bound[part] if part in bound else int(part) for part in parts]
            found[symbol] = sum(extents)
    mask, length = (_symbol(entries, name, 1, 2) for name in ("attention_mask", "input_ids"))
    held = _symbol(entries, "past", 2, 4)
    if mask not in bound and mask not in found and length in bound and held in bound and mask:
        found[mask] = bound[held] + bound[length]
    return found


def _symbol(entries: Sequence[onnx.ValueInfoProto], name: str, axis: int, rank: int) -> str:
    """The symbol at that axis of the first input whose name begins so; '' for none."""
    for entry in entries:
        dims = _dims(entry)
        if entry.name.startswith(name) and len(dims) == rank:
            dim = dims[axis]
            return dim if isinstance(dim, str) and dim != _UNNAMED else ""
    return ""


def _bind(entry: onnx.ValueInfoProto, given: tuple[int, ...], bound: dict[str, int]) -> None:
    """Adds what the given shape says of the input's symbols. Raises: ModelError."""
    dims = _dims(entry) if _has_rank(entry) else [_UNNAMED] * len(given)
    fits = len(dims) == len(given) and all(extent >= 0 for extent in given)
    for dim, extent in zip(dims, given, strict=False):
        if not isinstance(dim, str):
            fits = fits and dim == extent
        elif dim != _UNNAMED:
            fits = fits and bound.setdefault(dim, extent) == extent
    if not fits:
        said = ", ".join(f"{dim} is {bound[dim]}" for dim in dims if dim in bound)
        raise ModelError(
            f"input '{entry.name}': the shape given is {_listed(given)}; the model fixes "
            f"{_listed(dims)}{f', where {said}' if said else ''}; give extents that agree "
            "with it"
        )


def _is_bound(entry: onnx.ValueInfoProto, bound: Mapping[str, int]) -> bool:
    return _has_rank(entry) and all(
        not isinstance(dim, str) or dim in bound for dim in _dims(entry)
    )


def _shape(entry: onnx.ValueInfoProto, shapes: Shapes, bound: Mapping[str, int]) -> tuple[int, ...]:
    if entry.name in shapes:
        return tuple(shapes[entry.name])
    return tuple(bound[dim] if isinstance(dim, str) else dim for dim in _dims(entry))


def _missing(entries: Sequence[onnx.ValueInfoProto], bound: Mapping[str, int]) -> ShapesMissing:
    """The error that asks for all shapes at once; an input whose symbols others bind has none."""
    options: list[str] = []
    assumed = dict(bound)
    for entry in entries:
        if not _is_bound(entry, assumed):
            options += ["--shape", f"{entry.name}={_listed(_example(entry, assumed))}"]
    stated = "; ".join(
        f"'{entry.name}' is {_listed(_dims(entry)) if _has_rank(entry) else 'of unknown rank'}"
        for entry in entries
    )
    dims = [dim for entry in entries if _has_rank(entry) for dim in _dims(entry)]
    names = [dim for dim in dims if isinstance(dim, str) and dim != _UNNAMED and dim not in bound]
    ranges = f"--shape {names[0]}=1..8" if names else "1..8"
    count = f"{len(entries)} inputs have" if len(entries) > 1 else "an input has"
    return ShapesMissing(
        f"{count} open dimensions: {stated}; expected extents, or ranges such as {ranges}; bind "
        f"them with {' '.join(options)}",
        options,
    )


def _example(entry: onnx.ValueInfoProto, assumed: dict[str, int]) -> list[int]:
    """A shape that would do for the input; `assumed` gets the extents of its symbols."""
    dims = _dims(entry) if _has_rank(entry) else [_UNNAMED, 3, _UNNAMED, _UNNAMED]
    usual = _IMAGE_EXTENT if len(dims) == 4 else _OTHER_EXTENT
    example: list[int] = []
    for position, dim in enumerate(dims):
        extent = dim if not isinstance(dim, str) else assumed.get(dim, usual if position else 1)
        example.append(extent)
        if isinstance(dim, str) and dim != _UNNAMED:
            assumed[dim] = extent
    return example


def _listed(dims: Sequence[int | str]) -> str:
    """As `--shape` writes them; a scalar has none."""
    return ",".join(map(str, dims))
