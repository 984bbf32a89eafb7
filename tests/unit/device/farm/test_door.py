"""The door: a pickle may name what a submission of bytes is made of, and nothing else."""

import os
import pickle
import subprocess
import sys
from functools import partial

import pytest

pytest.importorskip("distributed")

from retune.device.farm import door
from retune.device.farm.wire import RefusedError
from retune.device.farm.work import carry_out


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("true",)


@pytest.mark.parametrize(
    "value",
    [Bomb(), [b"x", Bomb()], os.getcwd, partial(carry_out, b""), ValueError("x"), print, {1: set}],
)
def test_anything_else_is_refused(value: object, caplog: pytest.LogCaptureFixture):
    with pytest.raises(RefusedError, match=r"that names .*; only batches of kernels are taken"):
        door._loads(pickle.dumps(value))
    (line,) = caplog.messages
    assert line.startswith("refused: a message that names ")


@pytest.mark.parametrize("value", [carry_out, b"x", "x", {"a": (1, 2.0, None)}, [True, {3}]])
def test_plain_data_and_the_one_function_are_read(value: object):
    assert door._loads(pickle.dumps(value)) == value


CLOSED = """
import pickle, sys
from retune.device.farm.door import close_door
close_door(1000)
import distributed.protocol.pickle as ours
from distributed.protocol.compression import compressions
assert not any(compressions), compressions
strangers = [
    name for name, module in sys.modules.items()
    if name.startswith("distributed") and getattr(module, "pickle", None) is pickle
    and not name.startswith("distributed.shuffle")
]
assert not strangers, strangers
try:
    ours.loads(pickle.dumps(print))
except Exception as error:
    print(type(error).__name__)
"""


def test_the_door_is_closed_for_the_whole_process():
    """No module of distributed that takes part reads pickles in another way."""
    done = subprocess.run(
        [sys.executable, "-c", CLOSED], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "RefusedError", done.stderr
