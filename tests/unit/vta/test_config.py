"""A variant is a few logarithms; what no accelerator can have is one sentence."""

import json

import pytest

from retune.core.errors import InputError
from retune.targets.vta.config import VtaConfig


def test_the_default_is_that_of_the_papers():
    config = VtaConfig()
    assert config.name == "1x16_i8w8a32_15_15_18_17"
    depths = (config.inp_depth, config.wgt_depth, config.acc_depth, config.uop_depth)
    assert depths == (2048, 1024, 2048, 8192)
    assert (config.inp_bytes, config.wgt_bytes, config.acc_bytes, config.out_bytes) == (
        16, 256, 64, 16,
    )  # fmt: skip
    assert config.macs == 256
    assert config.peak_gops == pytest.approx(51.2)


@pytest.mark.parametrize(
    "config",
    [VtaConfig(), VtaConfig(target="zcu104", log_batch=1, log_acc_buff_size=16)],
    ids=lambda config: config.name,
)
def test_names_and_fields_lead_back(config: VtaConfig):
    assert VtaConfig.from_name(config.name, config.target) == config
    fields = json.loads(json.dumps({**config.to_dict(), "HW_VER": "0.0.2"}))
    assert VtaConfig.from_dict(fields) == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"LOG_BLOCKS": 4}, "no field 'LOG_BLOCKS'; there are TARGET"),
        ({"LOG_BLOCK": "4"}, "expected LOG_BLOCK to be whole; got '4'"),
        ({"LOG_BLOCK": True}, "expected LOG_BLOCK to be whole; got True"),
        ({"TARGET": "versal"}, "expected target one of sim, tsim"),
        ({"LOG_INP_WIDTH": 2}, "expected log_inp_width 3"),
        ({"LOG_BATCH": -1}, "expected log_batch from 0 to 4; got -1"),
        ({"LOG_ACC_BUFF_SIZE": 18}, "a micro-op would take 34 bits, there are 32"),
        ({"LOG_WGT_BUFF_SIZE": 8}, "less than two elements of 256 bytes"),
        (
            {"LOG_BLOCK": 1, "LOG_INP_BUFF_SIZE": 18, "LOG_ACC_BUFF_SIZE": 6 + 3}
            | {"LOG_WGT_BUFF_SIZE": 8},
            r"log_inp_buff_size 18 is too deep: copies name at most 2\*\*16 elements of 2 bytes",
        ),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        VtaConfig.from_dict(fields)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1x16",
        "1x16_i8w8a32_15_15_18",
        "1x17_i8w8a32_15_15_18_17",
        f"{'9' * 5000}x16_i8w8a32_15_15_18_17",
    ],
)
def test_other_names_are_refused(name: str):
    with pytest.raises(InputError, match="expected"):
        VtaConfig.from_name(name)
