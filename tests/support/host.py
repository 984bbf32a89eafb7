"""What tests of host share with others."""

import onnx
from onnx import parser

NONZERO = """
<ir_version: 8, opset_import: ["": 17]>
places (float[2, 3] x) => (int64[r, n] y) { y = NonZero (x) }
"""

SPLIT = """
<ir_version: 8, opset_import: ["": 17]>
split (float[1, 4] x, float[1, 4] z) => (float[1, 2] low, float[1, 2] high)
{ s = Add (x, z) low, high = Split <axis = 1> (s) }
"""


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(text)
