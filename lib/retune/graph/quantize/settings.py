"""Settings of quantization: parts of the network, types, and ranges."""

from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

from retune.core.dtypes import INT8
from retune.core.errors import InputError

Method = Literal["minmax", "percentile", "kl", "mse", "global_scale"]
"""How the range of an activation follows from the values that it took."""
Granularity = Literal["channel", "tensor"]
ActivationType = Literal["uint8", "int8"]
Scheme = Literal["int8", "power2"]
WeightBits = Literal[7, 8]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeSettings:
    """How a network is quantized. Raises: InputError for what does not go together."""

    method: Method = "minmax"
    weights: Granularity = "channel"
    """Whether each output channel has a scale of its own, or the whole weight one."""
    weight_bits: WeightBits | None = None
    """8: weights are of -127 to 127. 7: of -63 to 63, which is coarser, and half the time of exact
    products where a processor's instructions saturate. None: 8, or what a device is best at."""
    activations: ActivationType | None = None
    """`uint8` has a zero point anywhere, `int8` has it at 0. None: `uint8`, or what a device has
    instructions for."""
    scheme: Scheme = "int8"
    """`power2`: all scales are powers of two, so that shifts alone rescale."""
    bias_correction: bool = True
    """Whether biases make up for what rounding adds to the mean of each channel, over samples."""
    global_scale: float = 8.0
    """The largest magnitude of every activation, for the method of that name."""
    percentile: float = 0.99999
    """The part of the magnitudes that the range holds, for the method of that name."""
    skip_conv_layers: tuple[int, ...] = ()
    """Convolutions that stay in floats, counted from 0 in the network's order."""
    skip: tuple[str, ...] = ()
    """Nodes that stay in floats, by the name of what they make or by op."""
    pools_of_codes: bool = False
    """Whether maxima of floats that a layer reads are taken in integers: what else reads them, such
    as a residual sum, is in integers too then. The results are the same."""

    def __post_init__(self) -> None:
        for what, value, known in (
            ("method", self.method, get_args(Method)),
            ("weights", self.weights, get_args(Granularity)),
            ("activations", self.activations, get_args(ActivationType)),
            ("scheme", self.scheme, get_args(Scheme)),
            ("weight_bits", self.weight_bits, get_args(WeightBits)),
        ):
            if value is not None and value not in known:
                expected = ", ".join(map(str, known))
                raise InputError(f"{what} '{value}' is not known; expected {expected}")
        if self.scheme == "power2" and (self.weights, self.activations) != ("tensor", INT8):
            raise InputError(
                "scheme power2 rescales by one shift: expected weights 'tensor' and activations "
                f"'int8'; got '{self.weights}' and '{self.activations}'"
            )
        if not 0 < self.global_scale < inf or not 0 < self.percentile <= 1:
            raise InputError(
                f"global_scale {self.global_scale} and percentile {self.percentile}: expected a "
                "positive number, and one above 0 and at most 1"
            )
        if any(index < 0 for index in self.skip_conv_layers):
            raise InputError(f"skip_conv_layers {self.skip_conv_layers}: expected counts from 0")

    @property
    def most_weight(self) -> int:
        """The largest quantized value of a weight, in magnitude."""
        return 63 if self.weight_bits == 7 else 127


POWER2 = QuantizeSettings(
    scheme="power2",
    method="global_scale",
    weights="tensor",
    activations="int8",
    pools_of_codes=True,
)
"""What hardware without multipliers for rescaling takes."""
