"""Batches on a board: measured by the Runner of its device, as in a search on that machine."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from retune.core.errors import InputError
from retune.device.measure.vitals import read_vitals
from retune.device.measure.workload import Runner
from retune.device.opening import open_runner
from retune.device.remote.batches import Limits, pack_rows, unpack_batch
from retune.device.remote.wire import MessageParts, RefusedError
from retune.device.simulated.accelerator import config_of

_KNOWN = 4
"""Workloads whose arrays the runner holds at once."""


class Measuring:
    """Carries out jobs of kind `measure`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        spec = runner.spec
        self._limits = Limits(
            buffer_bytes=spec.global_memory_bytes,
            spread_bytes=spec.global_memory_bytes,
            accelerator=config_of(spec),
        )
        self._given: OrderedDict[str, str] = OrderedDict()
        """Digest of each workload that the runner has, the latest at the end."""

    def carry_out(
        self, body: str, parts: MessageParts, blob: Callable[[str], bytes]
    ) -> tuple[str, MessageParts]:
        """A row for each candidate, and how the board was then."""
        batch = unpack_batch(body, parts, self._limits)
        key = batch.workload_key
        if self._given.get(key) != batch.digest:
            self._runner.prepare(batch.workload(blob(batch.digest)))
            self._given[key] = batch.digest
        self._given.move_to_end(key)
        while len(self._given) > _KNOWN:
            self._runner.forget(self._given.popitem(last=False)[0])
        try:
            rows = self._runner.submit(key, batch.sources, batch.options).result()
        except InputError as error:
            raise RefusedError(str(error)) from error
        return pack_rows(rows, read_vitals()), MessageParts()

    def close(self) -> None:
        """Ends the processes that measure."""
        self._runner.close()


def open_handler(device: str, folder: Path) -> Measuring:  # noqa: ARG001  nothing lies on disk
    """Who measures on the board's device."""
    return Measuring(open_runner(device))
