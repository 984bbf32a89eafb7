"""The inputs of a run against what the module takes.

Read `InputCheck.arrays` and `InputCheck.sizes`. A run of a tiny network takes some microseconds, so
that right inputs are told with few steps of Python, and only wrong ones are looked at closely.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from retune.bundle.plan import NetworkPlan
from retune.bundle.sizes import PlanSize
from retune.core.dims import Dim, at, is_fixed
from retune.core.dtypes import TensorType
from retune.core.errors import InputError

Inputs = Mapping[str, np.ndarray] | Sequence[np.ndarray] | np.ndarray
"""Arrays by name, in the model's order, or the only one."""
Key = tuple[object, ...]
"""What the sizes of inputs follow from."""

_LEAST, _MOST = np.minimum.reduce, np.maximum.reduce
"""Of an array, in less time than its methods."""


class InputCheck:
    """What a module takes, prepared for a look at each run."""

    def __init__(self, plan: NetworkPlan, names: Sequence[str] | None = None) -> None:
        """Of inputs that have these `names`, all of them by default; others are states."""
        self._plan = plan
        self.names = tuple(plan.inputs if names is None else names)
        self._types = {name: plan.type_of(name) for name in self.names}
        self._expected = [(name, t.dtype.numpy) for name, t in self._types.items()]
        self._sizes = [_said_by(each, self._types) for each in plan.sizes if not each.counted]
        self._values = {n: row for n, row in plan.values.items() if n in self._types}
        self._stating = [n for n, name in enumerate(self._types) if name in self._values]
        """Numbers of the inputs whose elements are stated."""
        names_there = list(self._types)
        self._indices = [
            (names_there.index(name), extent)
            for name, extent in plan.indices.items()
            if name in self._types
        ]

    def named(self, inputs: Inputs) -> Mapping[str, np.ndarray]:
        """The inputs by name; without names they are in the module's order, or the only one.

        Raises: InputError for another number of them.
        """
        if isinstance(inputs, Mapping):
            return inputs
        given = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        if len(given) != len(self.names):
            expected = ", ".join(self.names)
            raise InputError(
                f"bundle {self._plan.name}: expected arrays of the inputs {expected}; got "
                f"{len(given)}; name them: run({{{self.names[0]!r}: array, ...}})"
            )
        return dict(zip(self.names, given, strict=True))

    def arrays(self, inputs: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """The inputs in the module's order; their shapes are not looked at.

        Raises: InputError if one is missing, unknown, or of another type.
        """
        found: list[np.ndarray] = []
        for name, dtype in self._expected:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype:
                return self._examined(inputs)
            found.append(array)
        if len(inputs) != len(found):
            return self._examined(inputs)
        return found

    def _examined(self, inputs: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """The same for whatever can be made into arrays, with an error that says what is wrong."""
        if set(inputs) != set(self._types):
            got, expected = ", ".join(inputs) or "none", ", ".join(self._types)
            raise InputError(f"bundle {self._plan.name}: expected the inputs {expected}; got {got}")
        arrays = {key: np.asarray(inputs[key]) for key in self._types}
        for key, array in arrays.items():
            if array.dtype != self._types[key].dtype:
                remedy = f"convert it with .astype({self._types[key].dtype!r})"
                raise self._unfit(key, f"{array.dtype}{_shown(array.shape)}", remedy)
        return list(arrays.values())

    def key(self, arrays: Sequence[np.ndarray]) -> Key:
        """Equal for inputs of equal sizes."""
        shapes = tuple([array.shape for array in arrays])
        if not self._stating:
            return shapes
        return (*shapes, *(tuple(arrays[n].reshape(-1).tolist()) for n in self._stating))

    def sizes(
        self, arrays: Sequence[np.ndarray], known: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """The sizes that these inputs have, beside those that are `known`.

        Raises: InputError if a shape is another one, or a size is out of its range.
        """
        given = dict(zip(self._types, arrays, strict=True))
        stated = {name: self._stated(name, given[name]) for name in self._values}
        values = dict(known or {})
        for each in self._sizes:
            if each.size.name in values:
                continue
            if each.input not in given:
                raise self._unsaid(each)
            shape = given[each.input].shape
            if len(shape) != len(self._types[each.input].shape):
                raise self._unfit(each.input, _shown(shape), "bring it into that layout")
            if each.axis is None:
                values[each.size.name] = stated[each.input][each.size.name]
            else:
                values[each.size.name] = self._extent(each, each.axis, shape[each.axis])
        for name, kind in self._types.items():
            self._check_shape(name, kind, given[name].shape, values)
        for name, elements in self._values.items():
            expected, found = [at(e, values) for e in elements], given[name].reshape(-1).tolist()
            if found != expected:
                self._raise_contradiction(name, expected, found)
        return values

    def indices(self, arrays: Sequence[np.ndarray], sizes: Mapping[str, int]) -> None:
        """Inputs of indices name elements that there are, for these sizes.

        Raises: InputError for one that does not.
        """
        for number, extent in self._indices:
            array, end = arrays[number], at(extent, sizes)
            if array.size and not (-end <= _LEAST(array, None) and _MOST(array, None) < end):
                wrong = array[(array < -end) | (array >= end)].flat[0]
                raise InputError(
                    f"bundle {self._plan.name}: input {self.names[number]}: expected indices from "
                    f"{-end} to {end - 1}; got {wrong}; give an index that the model has"
                )

    def _unsaid(self, each: PlanSize) -> InputError:
        return InputError(
            f"bundle {self._plan.name}: session: expected a value of {each.size}, which no input "
            f"but the state {each.input} says; give it with session({{{each.size.name!r}: ...}})"
        )

    def _stated(self, name: str, array: np.ndarray) -> dict[str, int]:
        """The sizes that elements of the input say, by name.

        Raises: InputError for an element that is not in its range.
        """
        elements, found = self._values[name], dict[str, int]()
        if array.size != len(elements):
            remedy = "compile the model for this shape with --shape"
            raise self._unfit(name, _shown(array.shape), remedy)
        for position, (element, number) in enumerate(
            zip(elements, array.reshape(-1).tolist(), strict=True)
        ):
            own = _solved(element, number)
            if own is None:
                which = f": element {position}" if len(elements) > 1 else ""
                raise InputError(
                    f"bundle {self._plan.name}: input {name}{which}: expected "
                    f"{_range_text(element)}; got {number}; compile the model for this value with "
                    "--value"
                )
            found |= own
        return found

    def _raise_contradiction(self, name: str, expected: list[int], found: list[int]) -> None:
        elements = ", ".join(map(str, self._plan.values[name]))
        raise InputError(
            f"bundle {self._plan.name}: input {name}: expected {elements}, which is {expected} by "
            f"the other inputs; got {found}; give inputs that fit"
        )

    def _extent(self, each: PlanSize, axis: int, value: int) -> int:
        if value in each.size.values:
            return value
        size = each.size
        ends = _ends_text(size.least, size.most, size.step)
        raise InputError(
            f"bundle {self._plan.name}: input {each.input}: axis {axis}: expected {size.name} from "
            f"{ends}; got {value}; compile the model for this size with --shape"
        )

    def _check_shape(
        self, name: str, kind: TensorType, shape: tuple[int, ...], values: Mapping[str, int]
    ) -> None:
        expected = tuple(at(extent, values) for extent in kind.shape)
        if shape == expected:
            return
        if not values or all(map(is_fixed, kind.shape)):
            got = f"{kind.dtype}{_shown(shape)}"
            if TensorType(shape).elements == TensorType(expected).elements:
                layout = f"with .reshape{expected} or a transpose"
                raise self._unfit(name, got, f"bring it into that layout, {layout}")
            raise self._unfit(name, got, "compile the model for this shape with --shape")
        sources = ", ".join(
            f"{each.size.name}={values[each.size.name]} by {self._source(each)}"
            for each in self._sizes
        )
        raise self._unfit(
            name, _shown(shape), f"for {sources} it is {_shown(expected)}; give inputs that fit"
        )

    def _source(self, each: PlanSize) -> str:
        if each.input not in self._types:
            return "the session's states"
        return each.input if each.axis is None else f"axis {each.axis} of {each.input}"

    def _unfit(self, name: str, got: str, remedy: str) -> InputError:
        where = f"bundle {self._plan.name}: input {name}"
        return InputError(f"{where}: expected {self._types[name]}; got {got}; {remedy}")


def _said_by(each: PlanSize, types: Mapping[str, TensorType]) -> PlanSize:
    """The size as one of these inputs says it, if any does."""
    if each.input in types and each.axis is None:
        return each
    positions = (
        (name, axis)
        for name in dict.fromkeys([each.input, *types])
        for axis, extent in enumerate(types[name].shape if name in types else ())
        if isinstance(extent, Dim) and extent.size == each.size
    )
    name, axis = next(positions, (each.input, each.axis))
    return replace(each, input=name, axis=axis)


def _solved(element: int, number: int) -> dict[str, int] | None:
    """The size for which the element is that number, by name; None for a number out of range."""
    if not isinstance(element, Dim):
        return {} if number == element else None
    try:
        own = element.solved(number)
    except ValueError:
        return None
    return own if all(own[size.name] in size.values for size in element.sizes) else None


def _range_text(element: int) -> str:
    """Which numbers the element may be."""
    if not isinstance(element, Dim):
        return str(element)
    (size,) = element.sizes
    ends = sorted(element.at({size.name: value}) for value in (size.least, size.values[-1]))
    steps = abs(
        element.at({size.name: size.least + size.step}) - element.at({size.name: size.least})
    )
    return _ends_text(ends[0], ends[1], steps)


def _ends_text(least: int, most: int, step: int) -> str:
    return f"{least} to {most}{f' in steps of {step}' if step > 1 else ''}"


def _shown(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
