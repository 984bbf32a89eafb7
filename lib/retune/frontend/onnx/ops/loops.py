"""Bodies of loops under construction: what handlers make `scan` nodes of."""

from collections.abc import Iterable

from retune.core.dtypes import TensorType
from retune.frontend.onnx.ops.registry import Emitter
from retune.graph.graph import GraphBuilder
from retune.graph.scan import SCAN, Scan


class LoopBody:
    """The body of one loop, and what it reads of the network around it.

    States come first, then what is scanned, then what is captured: in the order of `Scan`.
    """

    def __init__(self, around: Emitter, label: str, steps: int) -> None:
        """A body without inputs; `around` emits what is outside, `self.emit` what is inside."""
        self._around = around
        self._label = label
        self._steps = steps
        self._build = GraphBuilder(label, fold=True)
        self._given: list[str] = []
        self._backward: list[int] = []
        self._captured: dict[str, str] = {}
        self.emit = around.into(self._build)

    def state(self, label: str, initial: str) -> str:
        """What the state is in the body; `initial` is what it is before the first step."""
        return self._input(label, initial, self._around.type(initial))

    def slice(self, label: str, whole: str, *, backward: bool) -> str:
        """One step's slice of a value along its first axis, without that axis."""
        kind = self._around.type(whole)
        self._backward.append(int(backward))
        return self._input(label, whole, TensorType(kind.shape[1:], kind.dtype))

    def capture(self, value: str) -> str:
        """What a value of the network around it is in the body; '' stays ''."""
        if value and value not in self._captured:
            kind, array = self._around.type(value), self._around.known(value)
            name = self._build.fresh(value)
            self._captured[value] = (
                self._input(name, value, kind)
                if array is None
                else self._build.constant(name, array, kind.dtype)
            )
        return self._captured[value] if value else ""

    def finish(self, states: Iterable[str], rows: Iterable[tuple[str, bool]]) -> list[str]:
        """The loop is in the network; the states after it, then all rows of each row.

        `states` and `rows` are values of the body; of a row, whether it is stored backward. Raises:
        ModelError if a state changes its type.
        """
        after, each = [*states], [*rows]
        loop = Scan(
            body=self._build.finish([*after, *(row for row, _ in each)]),
            steps=self._steps,
            states=len(after),
            backward_inputs=tuple(self._backward),
            backward_outputs=tuple(int(backward) for _, backward in each),
        )
        build = self._around.build
        outputs = [build.reserve(f"{self._label}.{value}") for value in loop.body.outputs]
        build.add(SCAN, self._given, loop.attrs, outputs=outputs, name=self._label)
        return outputs

    def _input(self, label: str, given: str, kind: TensorType) -> str:
        self._given.append(given)
        return self._build.input(self._build.fresh(label), kind)
