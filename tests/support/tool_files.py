"""Files that onnxruntime's tools write, which tests import: `python -m tests.support.tool_files`.

The tools need sympy and onnx_ir, which nothing else here does, so their files are stored in
`tests/data/tools`. onnxruntime's own optimiser is run by the tests.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto

from tests.support.device_networks import Net
from tests.support.idioms import gelu, number, rms_norm

FILES = Path(__file__).parents[1] / "data" / "tools"
HEADS, WIDTH, LENGTH, WORDS = 2, 16, 6, 20


def projected(n: Net, x: str, depth: int, made: int) -> str:
    """A product with a stored matrix, and a bias behind it."""
    return n("Add", n("MatMul", x, n.weight(depth, made)), n.weight(made))


def encoder_layer(n: Net, x: str, mask: str) -> str:
    """As torch exports a layer of BERT."""

    def heads(perm: list[int]) -> str:
        parts = n("Reshape", projected(n, x, WIDTH, WIDTH), n.ints(0, 0, HEADS, WIDTH // HEADS))
        return n("Transpose", parts, perm=perm)

    def norm(left: str, right: str) -> str:
        total = n("Add", left, right)
        return n("LayerNormalization", total, n.positive(WIDTH), n.weight(WIDTH), axis=-1)

    query, key, value = heads([0, 2, 1, 3]), heads([0, 2, 3, 1]), heads([0, 2, 1, 3])
    root = number(n, (WIDTH // HEADS) ** 0.5)
    scores = n("Add", n("Div", n("MatMul", query, key), root), mask)
    sums = n("MatMul", n("Softmax", scores, axis=-1), value)
    joined = n("Reshape", n("Transpose", sums, perm=[0, 2, 1, 3]), n.ints(0, 0, WIDTH))
    x = norm(projected(n, joined, WIDTH, WIDTH), x)
    inner = gelu(n, projected(n, x, WIDTH, 2 * WIDTH))
    return norm(projected(n, inner, 2 * WIDTH, WIDTH), x)


def encoder() -> onnx.ModelProto:
    """Embeddings of words, positions and segments, a mask, and two layers."""
    n = Net("encoder", opset=17)
    ids, kinds, mask = (n.input(2, LENGTH, element=TensorProto.INT64) for _ in range(3))
    word = n("Gather", n.weight(WORDS, WIDTH), ids)
    place = n("Gather", n.weight(8, WIDTH), n.stored(np.arange(LENGTH)[None]))
    x = n("Add", n("Add", word, n("Gather", n.weight(2, WIDTH), kinds)), place)
    x = n("LayerNormalization", x, n.positive(WIDTH), n.weight(WIDTH), axis=-1)
    mask = n("Cast", n("Unsqueeze", n("Unsqueeze", mask, n.ints(1)), n.ints(2)), to=1)
    hidden = n("Mul", n("Sub", number(n, 1.0), mask), number(n, -10000.0))
    for _ in range(2):
        x = encoder_layer(n, x, hidden)
    return n.model(x)


def decoder_block() -> onnx.ModelProto:
    """A table of words, a norm and products with matrices whose weights can be quantized."""
    n = Net("decoder", opset=21)
    ids = n.input(1, LENGTH, element=TensorProto.INT64)
    x = n("Gather", n.weight(WORDS, 64), ids)
    x = n("Add", x, n("MatMul", rms_norm(n, x, 64), n.weight(64, 64)))
    return n.model(n("MatMul", n("Sigmoid", n("MatMul", x, n.weight(64, 48))), n.weight(48, 20)))


def write_encoders(folder: Path) -> None:
    """What the transformers optimiser makes, as Attention and as MultiHeadAttention."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    with TemporaryDirectory() as temporary:
        path = Path(temporary) / "encoder.onnx"
        onnx.save(encoder(), path)
        for name, separate in (("attention", False), ("multi_head", True)):
            options = FusionOptions("bert")
            options.use_multi_head_attention = separate
            made = optimizer.optimize_model(
                str(path), "bert", HEADS, WIDTH, optimization_options=options, opt_level=0
            )
            made.save_model_to_file(str(folder / f"encoder_{name}.onnx"))


def write_quantized(folder: Path) -> None:
    """What the quantizer of weights to a few bits makes of products and tables."""
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )

    for bits, symmetric in ((4, True), (4, False), (8, False)):
        config = DefaultWeightOnlyQuantConfig(
            block_size=16,
            is_symmetric=symmetric,
            accuracy_level=1,
            quant_format=QuantFormat.QOperator,
            op_types_to_quantize=("MatMul", "Gather") if bits == 4 else ("MatMul",),
            bits=bits,
        )
        quantizer = MatMulNBitsQuantizer(decoder_block(), algo_config=config)
        quantizer.process()
        name = f"decoder_{bits}_{'symmetric' if symmetric else 'shifted'}.onnx"
        quantizer.model.save_model_to_file(str(folder / name))


if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    write_encoders(FILES)
    write_quantized(FILES)
