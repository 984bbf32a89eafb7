"""Certificates that are taken back while a farm runs: their owners are out, all others go on."""

from contextlib import closing
from pathlib import Path

import pytest

from retune.core.errors import DeviceError
from retune.device.measure.workload import MeasureOptions
from retune.device.remote.link import AwayError
from retune.farm.certs import make_certs, revoke
from tests.farm.processes import Farm
from tests.support.measure import WORKLOAD, program

pytestmark = [pytest.mark.slow, pytest.mark.device]


def measured(farm: Farm) -> str:
    """The board that took a measurement."""
    with closing(farm.link()) as link, closing(farm.runner(link)) as runner:
        runner.prepare(WORKLOAD)
        (row,) = runner.submit("task", [program()], MeasureOptions()).result()
    assert row.ok
    return row.instance


def test_a_board_and_a_client_that_are_revoked_are_out(tmp_path: Path):
    with Farm(tmp_path) as farm:
        lost = farm.start_board("lost")
        assert measured(farm) == "lost"
        make_certs(farm.certs, ["other"], "board")
        farm.start_board("other", member="other")

        revoke(farm.certs, ["board"])
        farm.scheduler.wait_for("refused: a connection from .*: the certificate of 'board' was rev")
        farm.scheduler.wait_for("board 'lost' of key 'sim' is gone")
        with closing(farm.link()) as link:
            assert [board.name for board in link.boards().found] == ["other"]
        assert measured(farm) == "other"
        assert lost.alive, "it waits for a scheduler that lets it in"
        lost.wait_for(r"the scheduler closes the connection; .*trying again in 8 s")
        assert len(lost.matching("is not in the farm")) == 2, "it knocks less and less often"

        with closing(farm.link()) as link:
            link.boards()
            revoke(farm.certs, ["client"])
            with pytest.raises((AwayError, DeviceError)):
                link.boards()
        farm.scheduler.wait_for("the certificate of 'client' was revoked")
        for process in farm.processes:
            assert process.alive
            assert not process.matching("Traceback|^  ")
