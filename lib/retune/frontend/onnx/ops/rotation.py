"""RotaryEmbedding: heads whose pairs of elements are rotated by the positions of their tokens."""

from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op


@onnx_op("RotaryEmbedding", since=23)
def rotary_embedding(node: OnnxNode, emit: Emitter) -> None:
    """Data [batch, heads, length, width], or [batch, length, heads * width]."""
    data, cos, sin = node.inputs[:3]
    shape = emit.shape(data)
    width = node.integer("rotary_embedding_dim", 0)
    interleaved = bool(node.integer("interleaved", 0))
    tables = tables_at(emit, (cos, sin), node.inputs[3] if node.has_input(3) else "")
    if len(shape) == 4:
        emit.same(rotated(emit, data, tables, 2, width=width, interleaved=interleaved))
        return
    heads = node.integer("num_heads", 0)
    if len(shape) != 3 or heads < 1 or shape[2] % heads:
        raise ModelError(
            f"rotation of {emit.type(data)}, num_heads {heads}: expected [batch, heads, length, "
            "width], or [batch, length, heads * width] and the number of heads"
        )
    apart = emit.reshaped(data, (*shape[:2], heads, shape[2] // heads))
    made = rotated(emit, apart, tables, 1, width=width, interleaved=interleaved)
    emit.same(emit.reshaped(made, shape))


def tables_at(emit: Emitter, tables: tuple[str, str], positions: str) -> tuple[str, str]:
    """Cosines and sines [batch, length, half], of tables [positions, half] at positions.

    '' for positions: the tables are that already.
    """
    if not positions:
        return tables
    cos, sin = (emit.temp("gather", table, positions, label="angles", axis=0) for table in tables)
    return cos, sin


def rotated(
    emit: Emitter,
    data: str,
    tables: tuple[str, str],
    tokens: int,
    *,
    width: int = 0,
    interleaved: bool,
) -> str:
    """Data of four dimensions, batch, tokens at that axis, heads, and elements, rotated.

    The first `width` elements of a head (0: all) are rotated by cosines and sines [batch, length,
    width / 2]. Pairs are neighbours if `interleaved`, or else an element of the first half and one
    of the second.
    """
    *outer, whole = emit.shape(data)
    half = (width or whole) // 2
    if emit.shape(tables[0])[-1] != half or 2 * half > whole:
        raise ModelError(
            f"rotation of {emit.type(data)} by {emit.type(tables[0])}: expected {half} cosines "
            "for each position, and as many sines"
        )
    pair, axis = ((half, 2), 4) if interleaved else ((2, half), 3)
    sides = [1, 1, 1, *((half, 1) if interleaved else (1, half))]
    angles = []
    for table in tables:
        batch, length, _ = emit.shape(table)
        sides[0], sides[tokens] = batch, length
        angles.append(emit.reshaped(table, tuple(sides)))
    pairs = emit.reshaped(emit.part(data, 3, 0, 2 * half), (*outer, *pair))
    made = emit.temp("rotate", pairs, *angles, label="rotated", axis=axis)
    made = emit.reshaped(made, (*outer, 2 * half))
    if 2 * half == whole:
        return made
    return emit.temp("concat", made, emit.part(data, 3, 2 * half, whole - 2 * half), axis=3)
