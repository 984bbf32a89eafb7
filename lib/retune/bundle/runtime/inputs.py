"""The inputs of a run against what the module takes.

Read `InputCheck.arrays`. A run of a tiny network takes some microseconds, so that right inputs are
told with few steps of Python, and only wrong ones are looked at closely.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from retune.core.dtypes import TensorType
from retune.core.errors import InputError


class InputCheck:
    """What a module takes, prepared for a look at each run."""

    def __init__(self, module: str, types: Mapping[str, TensorType]) -> None:
        self._module = module
        self._types = types
        self._expected = [(name, t.dtype.numpy, t.shape) for name, t in types.items()]

    def arrays(self, inputs: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """The inputs in the module's order.

        Raises: InputError if one is missing, unknown, or of another shape or type.
        """
        found: list[np.ndarray] = []
        for name, dtype, shape in self._expected:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                return _examined(self._module, self._types, inputs)
            found.append(array)
        if len(inputs) != len(found):
            return _examined(self._module, self._types, inputs)
        return found


def _examined(
    name: str, types: Mapping[str, TensorType], inputs: Mapping[str, np.ndarray]
) -> Sequence[np.ndarray]:
    """The same for whatever can be made into arrays, with an error that says what is wrong."""
    missing = [f"no {key}" for key in types if key not in inputs]
    unknown = [f"an unknown {key}" for key in inputs if key not in types]
    if missing or unknown:
        got = " and ".join(missing + unknown)
        raise InputError(f"bundle {name}: expected the inputs {', '.join(types)}; got {got}")
    arrays = {key: np.asarray(inputs[key]) for key in types}
    for key, array in arrays.items():
        expected = types[key]
        if array.shape != expected.shape or array.dtype != expected.dtype:
            raise InputError(
                f"bundle {name}: input {key}: expected {expected}; got "
                f"{array.dtype}[{', '.join(map(str, array.shape))}]; {_remedy(array, expected)}"
            )
    return list(arrays.values())


def _remedy(array: np.ndarray, expected: TensorType) -> str:
    if array.dtype != expected.dtype:
        return f"convert it with .astype({expected.dtype!r})"
    if array.size == expected.elements:
        return f"bring it into that layout, with .reshape{expected.shape} or a transpose"
    return "compile the model for this shape with --shape"
