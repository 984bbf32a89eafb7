"""All cases of onnxruntime's own operators: importing the modules of their families states them."""

from tests.support import contrib_attention, contrib_blocks, contrib_float, contrib_standard
from tests.support.contrib import CASES

__all__ = ["CASES", "contrib_attention", "contrib_blocks", "contrib_float", "contrib_standard"]
