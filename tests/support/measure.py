"""What tests of measure share with others."""

import threading
from collections.abc import Callable, Hashable

import numpy as np

from retune.codegen.source import (
    KernelLaunch,
    KernelText,
    Packing,
    ProgramBuffer,
    ProgramSource,
)
from retune.core.dtypes import FLOAT32
from retune.core.target import GENERIC_CPU
from retune.device.measure.local import Workload
from retune.device.measure.messages import (
    Check,
    Checked,
    Done,
    Reply,
    Request,
    Time,
    Timed,
)

WORKLOAD = Workload(
    key="task",
    inputs={"x": np.ones(4, np.float32), "w": np.arange(4, dtype=np.float32)},
    outputs={"y": np.ones((2, 2), np.float32)},
)


class Reverse:
    def apply(self, array: np.ndarray) -> np.ndarray:
        return array[::-1].copy()


def program(
    name: str = "k", elements: int = 4, text: str = "", *, single_item: bool = False
) -> ProgramSource:
    launch = KernelLaunch(
        kernel=name,
        args=("x", "w", "y"),
        writes=("y",),
        global_size=(4, 1, 1),
        local_size=(1, 1, 1),
        flops=4,
        bytes=48,
    )
    return ProgramSource(
        kernels=(KernelText(name=name, text=text or f"// {name}", single_item=single_item),),
        launches=(launch,),
        buffers=(
            ProgramBuffer(name="x", dtype=FLOAT32, elements=elements, role="input"),
            ProgramBuffer(name="w", dtype=FLOAT32, elements=4, role="weight"),
            ProgramBuffer(name="y", dtype=FLOAT32, elements=4, role="output"),
        ),
        packings={"w": Packing(pack=Reverse(), sources=("w",))},
    )


CALM = Timed(times_us=(3.0, 1.0, 2.0), before_us=100.0, after_us=102.0)


class FakeChild:
    """Answers by a script: a function from request to reply, or to an exception."""

    spec = GENERIC_CPU

    def __init__(self, answer: Callable[[Request], Reply | Exception | None]) -> None:
        self.answer = answer
        self.holds: set[Hashable] = set()
        self.seen: list[Request] = []
        self.pid = 1
        self.closed = 0
        self.killed = threading.Event()

    def ensure(self) -> None:
        pass

    def kill(self) -> None:
        self.killed.set()

    def close(self) -> None:
        self.closed += 1
        self.holds.clear()

    def request(self, request: Request, deadline_s: float) -> Reply:
        assert deadline_s > 0
        self.seen.append(request)
        reply = self.answer(request)
        if isinstance(reply, BaseException):
            self.holds.clear()
            raise reply
        if reply is not None:
            return reply
        match request:
            case Check():
                return Checked(max_abs_err=0.5, first_s=0.001)
            case Time():
                return CALM
            case _:
                return Done()

    def count(self, kind: type) -> int:
        return sum(isinstance(item, kind) for item in self.seen)
