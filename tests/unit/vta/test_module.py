"""A module's file is plain arrays; what is damaged is refused."""

import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from retune.core.errors import InputError, RecordError
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.functional import execute
from retune.targets.vta.lower import lower
from retune.targets.vta.module import VtaModule, element_bytes
from retune.targets.vta.template import KNOBS
from tests.support.layers import PLAIN, SMALL, WHOLE, arrays_of
from tests.support.refusals import DECIDED

_ONE_TILE = {**dict.fromkeys(KNOBS, (1,)), "tile_h": (3,), "tile_w": (3,)}


def test_a_saved_module_computes_the_same(tmp_path: Path):
    module = lower(WHOLE, DECIDED, SMALL)
    again = VtaModule.load(module.save(tmp_path / "new" / "layer.npz"))
    arrays = arrays_of(WHOLE, SMALL, np.random.default_rng(0))
    assert again.key == module.key
    assert again.buffers == module.buffers
    assert np.array_equal(execute(again, arrays)["output"], execute(module, arrays)["output"])


def test_places_may_be_text_and_one_that_cannot_be_is_refused(tmp_path: Path):
    module = lower(WHOLE, DECIDED, SMALL)
    made = module.save(str(tmp_path / "layer.npz"))
    assert VtaModule.load(str(made)).key == module.key
    with pytest.raises(InputError, match="expected the name of a file, got a folder"):
        module.save(tmp_path)
    with pytest.raises(InputError, match=f"expected a folder, got a file at {made}"):
        module.save(made / "below.npz")
    with pytest.raises(RecordError, match="cannot be read"):
        VtaModule.load(str(tmp_path / "none.npz"))


def test_damage_is_refused(tmp_path: Path):
    whole = lower(WHOLE, DECIDED, SMALL).to_bytes()
    with pytest.raises(RecordError, match="cannot be read"):
        VtaModule.load(tmp_path / "none.npz")
    for content in (b"", b"text", whole[:100], whole[: len(whole) // 2]):
        with pytest.raises(RecordError, match="expected a VTA module"):
            VtaModule.from_bytes(content)


def test_a_file_holds_no_more_than_its_own_size():
    """One that unpacks to more is refused before it does."""
    stream = io.BytesIO()
    np.savez_compressed(stream, header=np.zeros(1 << 24, np.uint8))
    with pytest.raises(RecordError, match="got arrays that are compressed"):
        VtaModule.from_bytes(stream.getvalue())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"version": 1,', b'"version": 9,', "of format 1 at most, got 9; install a newer retune"),
        (b'"version": 1,', b'"version": "1",', "version: expected a whole number, got '1'"),
        (b'"config": "{', b'"config": "!{', "expected a configuration in JSON"),
        (b'"name"', b'"nome"', "name: expected a value"),
        (b'\\"LOG_BLOCK\\": 2', b'\\"LOG_BLOCK\\": 40', "expected log_block from 1 to 8; got 40"),
        (b'"name": "weight"', b'"name": "data"', "buffers of different names, got data, data"),
        (b'"elements": 48', b'"elements": -48', "sizes of at least 0, got .*elements=-48"),
        (b'"elements": 48', b'"elements": 4800000000000', "buffer data .* got shape .*, 192 bytes"),
        (b'"offset": 1024', b'"offset": -1024', "sizes of at least 0, got .*offset=-1024"),
        (b'"offset": 1024', b'"offset": 4294967290', r"elements of data below 2\*\*32, where"),
        (b'"name": "uops"', b'"name": "more"', r"one buffer uops of \d+ micro-ops, got \[\('more'"),
    ],
)
def test_headers_of_other_programs_are_refused(old: bytes, new: bytes, message: str):
    with pytest.raises(RecordError, match=rf"layer\.npz: .*{message}"):
        VtaModule.from_bytes(_with_header(old, new), "layer.npz")


def test_a_header_of_other_numbers_is_refused():
    stream = io.BytesIO()
    np.savez(
        stream, header=np.array(["hello"]), words=np.zeros((1, 2), np.uint64), uops=np.zeros(1)
    )
    with pytest.raises(RecordError, match="x: expected a header in bytes, got <U5"):
        VtaModule.from_bytes(stream.getvalue(), "x")


def test_buffers_lie_apart_where_elements_are_large():
    """Weights of blocks of 256 channels are elements of 64 KiB: more than what buffers begin at."""
    config = VtaConfig(
        log_block=8, log_wgt_buff_size=20, log_inp_buff_size=16, log_acc_buff_size=18
    )
    module = lower(replace(PLAIN, h=3, w=3, o=1, c=1), _ONE_TILE, config)
    places = sorted(
        (b.offset * (size := element_bytes(b.memory, config)), (b.offset + b.elements) * size)
        for b in module.buffers
    )
    assert all(end <= begin for (_, end), (begin, _) in pairwise(places))


def test_a_file_of_something_else_is_no_module():
    with pytest.raises(RecordError, match=r"x: expected a VTA module \(\.npz\), got other bytes$"):
        VtaModule.from_bytes(b"root:x:0:0:root:/root:/bin/bash\n", "x")


def _with_header(old: bytes, new: bytes) -> bytes:
    """The file of a module, with a part of its header replaced."""
    with np.load(io.BytesIO(lower(WHOLE, DECIDED, SMALL).to_bytes())) as parts:
        arrays = dict(parts)
    header = arrays["header"].tobytes()
    assert old in header
    arrays["header"] = np.frombuffer(header.replace(old, new, 1), np.uint8)
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()
