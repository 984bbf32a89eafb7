"""Instructions, their bits and their text stand for each other."""

import numpy as np
import pytest

from retune.core.errors import InputError
from retune.targets.vta import isa
from retune.targets.vta.assembly import disassemble, disassemble_uops
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.isa import (
    INSTRUCTION,
    MICRO_OP,
    decode,
    decode_uops,
    encode,
    encode_uops,
    layouts,
)
from tests.support.layers import SMALL
from tests.support.vta_assembly import assemble, assemble_uops


def _random(count: int, config: VtaConfig, seed: int = 0) -> np.ndarray:
    """Instructions with random values of all that their fields can hold."""
    rng = np.random.default_rng(seed)
    made = np.zeros(count, INSTRUCTION)
    made["opcode"] = rng.integers(0, 5, count)
    for opcode, layout in layouts(config).items():
        mine = made["opcode"] == opcode
        for name, _, _, bits in layout:
            if name == "opcode":
                continue
            low = -(1 << (bits - 1)) if name == "imm" else 0
            values = rng.integers(low, low + (1 << bits), count)
            edge = rng.random(count)
            values = np.where(edge < 0.1, low, np.where(edge > 0.9, low + (1 << bits) - 1, values))
            made[name][mine] = values[mine]
    return made


@pytest.mark.parametrize("config", [VtaConfig(), SMALL], ids=lambda c: c.name)
def test_encoder_and_decoder_are_inverse(config: VtaConfig):
    made = _random(100_000, config)
    words = encode(made, config)
    assert words.dtype == np.uint64 and words.shape == (100_000, 2)
    assert np.array_equal(decode(words, config), made)
    assert np.array_equal(encode(decode(words, config), config), words)


def test_assembler_and_disassembler_are_inverse():
    made = _random(3000, VtaConfig())
    text = disassemble(made)
    assert np.array_equal(assemble(text), made)
    assert disassemble(assemble(text)) == text
    assert np.array_equal(assemble(disassemble(made, numbered=True)), made)


def test_micro_ops_too():
    config = VtaConfig()
    words = np.random.default_rng(0).integers(0, 1 << 32, 2000, dtype=np.uint32)
    uops = decode_uops(words, config)
    assert np.array_equal(encode_uops(uops, config), words)
    assert np.array_equal(assemble_uops(disassemble_uops(uops)), uops)


def test_bits_lie_where_the_hardware_has_them():
    load = np.zeros(1, INSTRUCTION)
    load["memory_type"], load["sram_base"], load["dram_base"] = isa.WGT, 0x1234, 0xDEADBEEF
    load["y_size"], load["x_size"], load["x_stride"] = 1, 2, 3
    load["x_pad_right"], load["pop_next"] = 5, 1
    low, high = (int(word) for word in encode(load, VtaConfig())[0])
    assert low == isa.LOAD | 1 << 4 | isa.WGT << 7 | 0x1234 << 10 | 0xDEADBEEF << 26
    assert high == 1 | 2 << 16 | 3 << 32 | 5 << 60


def test_text_reads_as_it_says():
    text = "load.inp sram=0 dram=256 size=4x56 stride=56 pad=1,0,1,1 pop_next push_next\n"
    (entry,) = assemble(f"\n# a row above\n  7: {text}")
    assert entry["memory_type"] == isa.INP
    assert (entry["y_size"], entry["x_size"], entry["y_pad_top"]) == (4, 56, 1)
    assert disassemble(np.array([entry])) == text


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("x_size", 1 << 16, r"instruction 1 \(load\): expected x_size 0 to 65535; got 65536"),
        ("dst_in", 1, r"instruction 1 \(load\): expected dst_in 0; got 1"),
        ("opcode", 7, "instruction 1: no opcode 7; there are 0 load"),
    ],
)
def test_what_has_no_bits_is_refused(field: str, value: int, message: str):
    made = np.zeros(2, INSTRUCTION)
    made[field][1] = value
    with pytest.raises(InputError, match=message):
        encode(made, VtaConfig())


def test_stray_bits_are_refused():
    words = encode(np.zeros(3, INSTRUCTION), VtaConfig())
    words[2, 0] |= np.uint64(1 << 63)
    with pytest.raises(InputError, match=r"instruction 2 .*bits are set that no field has"):
        decode(words, VtaConfig())
    uops = np.zeros(2, MICRO_OP)
    uops["wgt"][1] = 1024
    with pytest.raises(InputError, match="micro-op 1: expected wgt from 0 to 1023; got 1024"):
        encode_uops(uops, VtaConfig())
