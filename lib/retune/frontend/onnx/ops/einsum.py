"""Einsum: sums of products by subscripts, as transposes, reductions and matrix products.

Read `einsum` and `contract` first. Operands are combined from left to right. Two of them that share
a summed label become one matrix product, whose batch are the labels that they share and keep;
without a summed label they become one broadcast product. Labels that only one operand has, and
nobody needs, are summed before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from retune.core.dims import always_equal
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op

ELLIPSIS = "..."

Labels = tuple[str, ...]
"""One label for each dimension: a letter, or for those that the ellipsis stands for `.0`, `.1`, ...
counted from the last one."""


@dataclass(frozen=True, slots=True)
class EinsumOperand:
    """A value whose dimensions have labels."""

    value: str
    labels: Labels


@dataclass(frozen=True, slots=True)
class Equation:
    """The subscripts of the operands and of the result; the result's labels are distinct."""

    terms: tuple[Labels, ...]
    result: Labels


@onnx_op("Einsum")
def einsum(node: OnnxNode, emit: Emitter) -> None:
    """The sum over all labels that the result does not have of the operands' product."""
    shapes = [emit.shape(value) for value in node.inputs]
    equation = parse(node.text("equation", ""), [len(shape) for shape in shapes])
    extents = _extents(equation.terms, shapes)
    operands = [
        _without_ones(emit, _diagonal(emit, EinsumOperand(value, labels)), extents)
        for value, labels in zip(node.inputs, equation.terms, strict=True)
    ]
    total = operands[0]
    for position, operand in enumerate(operands[1:], start=1):
        later = {label for rest in operands[position + 1 :] for label in rest.labels}
        total = contract(emit, total, operand, later | set(equation.result))
    total = _summed(emit, total, equation.result)
    perm = tuple(total.labels.index(label) for label in equation.result)
    if perm == tuple(range(len(perm))):
        return emit.out("identity", total.value)
    return emit.out("transpose", total.value, perm=perm)


def parse(text: str, ranks: Sequence[int]) -> Equation:
    """The equation for operands of these ranks. Raises: ModelError if it does not fit them."""
    sources, arrow, target = text.replace(" ", "").partition("->")
    written = sources.split(",")
    if len(written) != len(ranks):
        raise ModelError(
            f"equation '{text}' has {len(written)} terms; expected {len(ranks)}, one for each input"
        )
    terms = tuple(_labels(term, rank, text) for term, rank in zip(written, ranks, strict=True))
    broadcast = _dots(max(sum(label[0] == "." for label in term) for term in terms))
    if arrow:
        before, dots, after = target.partition(ELLIPSIS)
        result = (*before, *(broadcast if dots else ()), *after)
    else:
        letters = [label for term in terms for label in term if label[0] != "."]
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        result = (*broadcast, *once)
    known = {label for term in terms for label in term}
    if len(set(result)) != len(result) or not known.issuperset(result):
        raise ModelError(
            f"equation '{text}': expected a result whose labels are all different and occur in the "
            "terms"
        )
    return Equation(terms, result)


def _labels(term: str, rank: int, text: str) -> Labels:
    before, dots, after = term.partition(ELLIPSIS)
    free = rank - len(before) - len(after)
    letters = before + after
    if free < 0 or (free and not dots) or not (letters.isalpha() or not letters):
        raise ModelError(
            f"equation '{text}': the term '{term}' does not fit an input of {rank} dimensions; "
            "expected a letter for each, or an ellipsis"
        )
    return (*before, *_dots(free), *after)


def _dots(count: int) -> Labels:
    return tuple(f".{position}" for position in reversed(range(count)))


def _extents(terms: Iterable[Labels], shapes: Iterable[tuple[int, ...]]) -> dict[str, int]:
    """The extent of each label. Raises: ModelError for two that do not broadcast."""
    extents: dict[str, int] = {}
    for labels, shape in zip(terms, shapes, strict=True):
        for label, extent in zip(labels, shape, strict=True):
            known = extents.setdefault(label, extent)
            if not always_equal(known, extent) and not _broadcasts(known, extent):
                name = "the ellipsis" if label[0] == "." else f"label '{label}'"
                raise ModelError(f"{name} stands for extents {known} and {extent}; expected equal")
            extents[label] = extent if always_equal(known, 1) else known
    return extents


def _broadcasts(a: int, b: int) -> bool:
    """Whether one of the extents is 1, or both are equal."""
    return always_equal(a, 1) or always_equal(b, 1) or a == b


def _diagonal(emit: Emitter, operand: EinsumOperand) -> EinsumOperand:
    """The operand with each repeated label once: the elements where its indices are equal.

    The diagonal of the last two dimensions [n, n] is every (n + 1)-th element of their [n * n].
    """
    while True:
        labels = operand.labels
        pair = next(((i, labels.index(x)) for i, x in enumerate(labels) if x in labels[:i]), None)
        if pair is None:
            return operand
        second, first = pair
        rest = [d for d in range(len(labels)) if d not in pair]
        moved = _transposed(emit, operand.value, (*rest, first, second))
        *outer, n, other = emit.shape(moved)
        if n != other:
            raise ModelError(f"label '{labels[second]}' stands for extents {n} and {other}")
        flat = emit.reshaped(moved, (*outer, n * n))
        picked = emit.temp(
            "slice",
            flat,
            begins=(0,) * (len(outer) + 1),
            steps=(*(1,) * len(outer), n + 1),
            extents=(*outer, n),
        )
        operand = EinsumOperand(picked, (*(labels[d] for d in rest), labels[second]))


def _without_ones(emit: Emitter, operand: EinsumOperand, extents: dict[str, int]) -> EinsumOperand:
    """The operand without the dimensions of extent 1 that are larger elsewhere."""
    shape = emit.shape(operand.value)
    kept = [
        d
        for d, label in enumerate(operand.labels)
        if always_equal(shape[d], extents[label]) or shape[d] != 1
    ]
    return EinsumOperand(
        emit.reshaped(operand.value, tuple(shape[d] for d in kept)),
        tuple(operand.labels[d] for d in kept),
    )


def contract(
    emit: Emitter, left: EinsumOperand, right: EinsumOperand, needed: set[str]
) -> EinsumOperand:
    """The product of both, summed over the labels that nobody needs."""
    left = _summed(emit, left, {*needed, *right.labels})
    right = _summed(emit, right, {*needed, *left.labels})
    shared = [label for label in left.labels if label in right.labels]
    batch = [label for label in shared if label in needed]
    inner = [label for label in shared if label not in needed]
    if not inner:
        return _multiplied(emit, left, right, batch)
    if not batch and emit.known(left.value) is not None:
        left, right = right, left  # dense layers have their weight on the right
    rows = [label for label in left.labels if label not in shared]
    columns = [label for label in right.labels if label not in shared]
    sizes = dict(zip(left.labels, emit.shape(left.value), strict=True))
    sizes |= dict(zip(right.labels, emit.shape(right.value), strict=True))
    made = tuple(sizes[label] for label in (*batch, *rows, *columns))
    a = _arranged(emit, left, batch, rows, inner)
    if not batch and emit.known(right.value) is not None:
        weight = _arranged(emit, right, columns, inner)
        value = emit.temp("dense", a, weight)
    else:
        value = emit.temp("matmul", a, _arranged(emit, right, batch, inner, columns))
    return EinsumOperand(emit.reshaped(value, made), (*batch, *rows, *columns))


def _multiplied(
    emit: Emitter, left: EinsumOperand, right: EinsumOperand, batch: Sequence[str]
) -> EinsumOperand:
    """The product of all pairs that agree in the labels of the batch."""
    rows = [label for label in left.labels if label not in batch]
    columns = [label for label in right.labels if label not in batch]
    a = _arranged_dims(emit, left, (*batch, *rows))
    b = _arranged_dims(emit, right, (*batch, *columns))
    shape = emit.shape(a)
    a = emit.reshaped(a, (*shape, *(1,) * len(columns)))
    wide = emit.shape(b)
    b = emit.reshaped(b, (*wide[: len(batch)], *(1,) * len(rows), *wide[len(batch) :]))
    return EinsumOperand(emit.temp("multiply", a, b), (*batch, *rows, *columns))


def _summed(emit: Emitter, operand: EinsumOperand, kept: Iterable[str]) -> EinsumOperand:
    """The operand summed over all labels but those kept."""
    labels, wanted = operand.labels, set(kept)
    axes = tuple(d for d, label in enumerate(labels) if label not in wanted)
    if not axes:
        return operand
    value = emit.temp("reduce_sum", operand.value, axes=axes, keepdims=False)
    return EinsumOperand(value, tuple(label for label in labels if label in wanted))


def _arranged(emit: Emitter, operand: EinsumOperand, *parts: Sequence[str]) -> str:
    """The operand with its dimensions in the order of the parts, each part merged into one.

    An empty first part of three, the batch, is left out.
    """
    value = _arranged_dims(emit, operand, [label for part in parts for label in part])
    sizes = iter(emit.shape(value))
    merged = [prod(next(sizes) for _ in part) for part in parts]
    return emit.reshaped(value, tuple(merged[1:] if len(parts) == 3 and not parts[0] else merged))


def _arranged_dims(emit: Emitter, operand: EinsumOperand, order: Sequence[str]) -> str:
    return _transposed(emit, operand.value, tuple(operand.labels.index(label) for label in order))


def _transposed(emit: Emitter, value: str, perm: tuple[int, ...]) -> str:
    if perm == tuple(range(len(perm))):
        return value
    return emit.temp("transpose", value, perm=perm)
