"""Images of four channels of float32, with arrays in them: constants that kernels read so.

What an image is asked to hold is checked here, in one sentence; which constants are images says
`codegen.passes.images`. Read `image_handle`.
"""

from typing import Any

import numpy as np

from retune.codegen.options import CHANNELS
from retune.core.errors import DeviceError
from retune.device.opencl.catalogue import opencl


def image_handle(context: Any, array: np.ndarray, row: int) -> Any:
    """The driver's image that holds a copy of the array, `row` texels in a row.

    Raises: DeviceError for an array that is not of whole rows of float32. The driver's error for
    an image that is larger than the device's.
    """
    rows, rest = divmod(array.size, CHANNELS * row)
    if rest or not rows or array.dtype != np.float32:
        raise DeviceError(
            f"image: expected rows of {row} texels of {CHANNELS} float32, got {array.size} of "
            f"{array.dtype}"
        )
    cl = opencl()
    kind = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.FLOAT)
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
    data = np.ascontiguousarray(array).reshape(rows, row, CHANNELS)
    return cl.create_image(context, flags, kind, shape=(row, rows), hostbuf=data)
