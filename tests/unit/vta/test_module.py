"""A module's file is plain arrays; what is damaged is refused."""

from pathlib import Path

import numpy as np
import pytest

from retune.core.errors import RecordError
from retune.vta.functional import execute
from retune.vta.lower import lower
from retune.vta.module import VtaModule
from tests.unit.vta.layers import SMALL, WHOLE, arrays_of
from tests.unit.vta.test_refusals import DECIDED


def test_a_saved_module_computes_the_same(tmp_path: Path):
    module = lower(WHOLE, DECIDED, SMALL)
    again = VtaModule.load(module.save(tmp_path / "new" / "layer.npz"))
    arrays = arrays_of(WHOLE, SMALL, np.random.default_rng(0))
    assert again.key == module.key
    assert again.buffers == module.buffers
    assert np.array_equal(execute(again, arrays)["output"], execute(module, arrays)["output"])


def test_damage_is_refused(tmp_path: Path):
    whole = lower(WHOLE, DECIDED, SMALL).to_bytes()
    with pytest.raises(RecordError, match="cannot be read"):
        VtaModule.load(tmp_path / "none.npz")
    for content in (b"", b"text", whole[:100], whole[: len(whole) // 2]):
        with pytest.raises(RecordError, match="expected a VTA module"):
            VtaModule.from_bytes(content)
    newer = whole.replace(b'"version": 1,', b'"version": 9,')
    with pytest.raises(RecordError):
        VtaModule.from_bytes(newer)
