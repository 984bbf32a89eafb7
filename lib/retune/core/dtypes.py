"""Element types, one entry each, and the types of tensors.

Read `DType`: all that depends on a type is a property of its entry, and nothing else compares its
name. An entry is all that a new type needs, see `define`: files, messages, ONNX and the text of
kernels follow from it.
"""

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from retune.core.dims import SizeValues, always_same, at, is_fixed

# numpy is loaded where arrays are met: the command line's help describes types without it.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]
else:
    Array = Any
Kind = Literal["float", "int", "uint", "bool"]
Specials = Literal["ieee", "fn", "fnuz"]
"""What patterns of a float mean none of its numbers, in the words of ONNX and `ml_dtypes`: those of
the greatest exponent, as in IEEE 754; all ones alone, a NaN, and none is infinite; or minus zero
alone, which is a NaN, and the exponent's bias is greater by one."""

_DEFAULT_TOLERANCE = 1e-4
"""Allowed deviation relative to the reference's range: the order of additions differs."""


class DType(str):
    """An element type: an entry of the table below, interned, which prints and stores as its name.

    Memory holds values of any type. What is computed with has a compute type, which is the type
    itself or a wider one: loads convert to it, and stores convert back.
    """

    __slots__ = (
        "bits", "compute", "element", "elements", "exponent", "kind", "specials", "tolerance",
    )  # fmt: skip
    kind: Kind
    bits: int
    """Of the values; in memory an element takes whole bytes, see `itemsize`."""
    tolerance: float
    """Allowed deviation of results that are stored so, relative to the reference's range."""
    element: "DType"
    """The type of what is packed in it; itself unless it is a word of several."""
    elements: int
    """Elements in one word."""
    compute: "DType"
    """The type of expressions that read such elements."""
    exponent: int
    """Bits of a float's exponent; 0 for others."""
    specials: Specials

    def __new__(cls, name: str) -> "DType":  # noqa: PYI034  # an entry of the table
        """The entry of that name. Raises: ValueError if there is none."""
        found = ENTRIES.get(name)
        if found is None:
            raise ValueError(f"expected an element type among {', '.join(DTYPES)}, got {name!r}")
        return found

    @classmethod
    def like(cls, element: "DType", name: str) -> Self:
        """A type of several such elements, which has that name and no entry."""
        made = str.__new__(cls, name)
        made.kind, made.bits, made.tolerance = element.kind, element.bits, element.tolerance
        made.element, made.elements, made.compute = element, 1, made
        made.exponent, made.specials = element.exponent, element.specials
        return made

    def __reduce__(self) -> tuple[type["DType"], tuple[Any, ...]]:
        return DType, (str(self),)

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.kind == "float"

    @property
    def is_small_float(self) -> bool:
        """Whether it is a floating-point type that memory holds, but nothing computes with."""
        return self.is_float and self.compute is not self

    @property
    def mantissa(self) -> int:
        """Bits of a float's mantissa, the leading one left out."""
        return self.bits - 1 - self.exponent

    @property
    def roundoff(self) -> float:
        """Half the distance from 1 to the next number of a float."""
        return 2.0 ** -(self.mantissa + 1)

    @property
    def bias(self) -> int:
        """What a float's stored exponent is greater by than that of its value."""
        return (1 << (self.exponent - 1)) - (self.specials != "fnuz")

    @property
    def finfo(self) -> Any:
        """Limits of a floating-point type, as `numpy.finfo` states them."""
        import numpy as np

        if self.numpy.isbuiltin == 1:
            return np.finfo(self.numpy)
        import ml_dtypes

        return ml_dtypes.finfo(self.numpy)

    @property
    def is_unsigned(self) -> bool:
        """Whether it is an integer without a sign; a bool is not."""
        return self.kind == "uint"

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer; a bool is not."""
        return self.kind in ("int", "uint")

    @property
    def is_narrow(self) -> bool:
        """Whether it is an integer that arithmetic promotes to int32, as C does."""
        return self.is_integer and self.elements == 1 and self.bits < 32

    @property
    def itemsize(self) -> int:
        """Bytes of one element, or of one word of several."""
        return self.elements * -(-self.element.bits // 8)

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest value of an integer or a bool."""
        assert not self.is_float, f"{self} has no limits as integers"
        if self.kind == "int":
            top = 1 << (self.bits - 1)
            return (-top, top if self is INT7 else top - 1)
        return (0, (1 << self.bits) - 1)

    @property
    def numpy(self) -> "np.dtype[Any]":
        """The type of arrays that hold such elements."""
        return _numpy(self.element)


ENTRIES: dict[str, DType] = {}
"""The table: types by name."""
DTYPES: list[DType] = []
"""Element types that a value of a graph may have: files of weights hold them all."""
NUMPY_DTYPES: list[DType] = []
"""Those that arrays have."""


def define(
    name: str,
    kind: Kind,
    bits: int,
    *,
    exponent: int = 0,
    specials: Specials = "ieee",
    compute: DType | None = None,
    tolerance: float = _DEFAULT_TOLERANCE,
    in_graphs: bool = True,
    in_arrays: bool = True,
) -> DType:
    """A new entry; a type that numpy lacks has the name that `ml_dtypes` calls it by.

    `in_graphs`: values of a graph may have the type, not only the memory of kernels. `in_arrays`:
    so may arrays. Raises: ValueError if there is an entry of that name.
    """
    if name in ENTRIES:
        raise ValueError(f"element type {name}: expected a new name, got that of an entry")
    entry = ENTRIES[name] = str.__new__(DType, name)
    entry.kind, entry.bits, entry.tolerance = kind, bits, tolerance
    entry.exponent, entry.specials = exponent, specials
    entry.element, entry.elements = entry, 1
    entry.compute = compute or entry
    if in_graphs:
        DTYPES.append(entry)
    if in_graphs and in_arrays:
        NUMPY_DTYPES.append(entry)
    return entry


FLOAT32 = define("float32", "float", 32, exponent=8)
FLOAT64 = define("float64", "float", 64, exponent=11)
FLOAT16 = define("float16", "float", 16, exponent=5, compute=FLOAT32, tolerance=2e-3)
BFLOAT16 = define("bfloat16", "float", 16, exponent=8, compute=FLOAT32, tolerance=1.6e-2)
TF32 = define(
    "tf32", "float", 19, exponent=8, compute=FLOAT32, tolerance=2e-3, in_graphs=False,
    in_arrays=False,
)  # fmt: skip
"""A float32 whose mantissa is rounded to ten bits, as matrix units of GPUs read it. Memory holds
float32: products alone have operands of that type, see `ops.linear.product`."""
FLOAT8_E4M3FN = define(
    "float8_e4m3fn", "float", 8, exponent=4, specials="fn", compute=FLOAT32, tolerance=1.25e-1,
    in_graphs=False,
)  # fmt: skip
FLOAT8_E5M2 = define(
    "float8_e5m2", "float", 8, exponent=5, compute=FLOAT32, tolerance=2.5e-1, in_graphs=False
)
INT64 = define("int64", "int", 64)
INT32 = define("int32", "int", 32)
INT16 = define("int16", "int", 16)
INT8 = define("int8", "int", 8)
INT7 = define("int7", "int", 7, in_arrays=False)
"""An int8 in memory, of -64 to 64, which is what quantizers to seven bits make. Only constants
have that type; some instructions for products of bytes ask for it."""
INT4 = define("int4", "int", 4, compute=INT8, in_graphs=False)
UINT64 = define("uint64", "uint", 64)
UINT32 = define("uint32", "uint", 32)
UINT16 = define("uint16", "uint", 16)
UINT8 = define("uint8", "uint", 8)
UINT7 = define("uint7", "uint", 7, in_arrays=False)
"""A uint8 in registers, of 0 to 127: what a mask leaves of a word. No array has that type; some
instructions for products of bytes ask for it."""
UINT4 = define("uint4", "uint", 4, compute=UINT8, in_graphs=False)
BOOL = define("bool", "bool", 1)
"""One byte in memory, 0 or 1."""


def packed(element: DType, count: int) -> DType:
    """The type of words of so many elements, `int8x4`, which matrix instructions read."""
    if count == 1:
        return element
    name = f"{element}x{count}"
    if name not in ENTRIES:
        word = ENTRIES[name] = DType.like(element, name)
        word.bits, word.elements = 8 * element.itemsize * count, count
    return ENTRIES[name]


@cache
def _numpy(dtype: DType) -> "np.dtype[Any]":
    import numpy as np

    if dtype is INT7:
        return np.dtype(np.int8)
    if dtype is UINT7:
        return np.dtype(np.uint8)
    if dtype is TF32:
        return np.dtype(np.float32)
    try:
        return np.dtype(str(dtype))
    except TypeError:
        import ml_dtypes

        found: Any = getattr(ml_dtypes, dtype)
        return np.dtype(found)


def dtype_of(array: "Array | np.generic") -> DType:
    """The type of an array's elements. Raises: ValueError if it is not one of ours."""
    found = _BY_NUMPY.get(array.dtype)
    if found is None:
        found = _BY_NUMPY[array.dtype] = DType(array.dtype.name)
    return found


_BY_NUMPY: dict["np.dtype[Any]", DType] = {}
"""What numpy takes microseconds to name."""


def as_stored(array: Array, dtype: DType) -> Array:
    """An array of a file of numpy's, which states no type of `ml_dtypes`, as one of that type.

    Others stay as they are.
    """
    import numpy as np

    kind = array.dtype
    bare = kind.type is np.void and kind.names is None
    return array.view(dtype.numpy) if bare and kind.itemsize == dtype.itemsize else array


def as_dtype(dtype: DType | str) -> DType:
    """The type itself, or that of the name. Raises: ValueError if there is none."""
    return dtype if isinstance(dtype, DType) else DType(dtype)


def numpy_dtype(dtype: str) -> "np.dtype[Any]":
    """The type of arrays that hold elements of the type of that name."""
    return DType(dtype).numpy


def itemsize(dtype: str) -> int:
    """Bytes of one element of the type of that name."""
    return DType(dtype).itemsize


UNKNOWN = -1
"""An extent that depends on the data: known when the value is made, not before."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorType:
    """Shape and element type of a value; an empty shape is a scalar.

    Types are equal if they are for all sizes. Extents may be UNKNOWN for what a host step leaves to
    the caller; such a type has no size.
    """

    shape: tuple[int, ...]
    dtype: DType = FLOAT32

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", as_dtype(self.dtype))  # of files and of users: a name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorType):
            return NotImplemented
        return self.dtype == other.dtype and always_same(self.shape, other.shape)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    @property
    def known(self) -> bool:
        """True if every extent is known before the network runs."""
        return not any(is_fixed(extent) and extent == UNKNOWN for extent in self.shape)

    @property
    def elements(self) -> int:
        """Number of elements, of a type whose extents are all known."""
        assert self.known, f"{self} has no size of its own"
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes, without padding."""
        return self.elements * self.dtype.itemsize

    def __str__(self) -> str:
        extents = ("?" if is_fixed(e) and e == UNKNOWN else str(e) for e in self.shape)
        return f"{self.dtype}[{', '.join(extents)}]"

    @property
    def fixed(self) -> bool:
        """Whether it is the same for all sizes."""
        return all(is_fixed(extent) for extent in self.shape)

    def at(self, values: SizeValues) -> "TensorType":
        """The type for these sizes."""
        return TensorType(tuple([at(extent, values) for extent in self.shape]), self.dtype)
