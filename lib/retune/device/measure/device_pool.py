"""DevicePool: a Runner over several devices of one kind, which measure at the same time."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from queue import SimpleQueue

from retune.codegen.source import ProgramSource
from retune.core.errors import InputError
from retune.core.target import DeviceSpec
from retune.device.measure.workload import DirectRunner, MeasureOptions, Runner, Workload
from retune.records.schema import Measurement


class DevicePool(DirectRunner):
    """Each batch is measured on whichever device is free; threads beyond their number wait.

    All are of one fingerprint, so their times compare; each row says which device took it.
    """

    def __init__(self, runners: Sequence[Runner]) -> None:
        """One runner for each device; the pool closes them.

        Raises: InputError if there is none, or if they are of several kinds.
        """
        kinds = sorted({runner.spec.fingerprint for runner in runners})
        if len(kinds) != 1:
            raise InputError(
                f"device pool: expected runners of one kind of device, got {len(kinds)} "
                f"({'; '.join(kinds) or 'no runner'}); make a pool for each kind"
            )
        super().__init__()
        self._runners = tuple(runners)
        self._free: SimpleQueue[int] = SimpleQueue()
        for number in range(len(runners)):
            self._free.put(number)
        self._prepared: list[dict[str, Workload]] = [{} for _ in runners]
        """What each runner was given; only who holds the runner looks."""

    @property
    def spec(self) -> DeviceSpec:
        """The first device."""
        return self._runners[0].spec

    @property
    def capacity(self) -> int:
        """The number of devices."""
        return len(self._runners)

    @property
    def slots(self) -> int:
        """One for each device, and one more where a device takes in another one meanwhile."""
        return self.capacity + max(runner.slots for runner in self._runners) - 1

    @contextmanager
    def working(self) -> Generator[None]:
        """None of the devices that work would disturb measures during the context."""
        with ExitStack() as stack:
            for runner in self._runners:
                stack.enter_context(runner.working())
            yield

    def measure(
        self,
        workload_key: str,
        candidates: Sequence[ProgramSource],
        options: MeasureOptions,
    ) -> list[Measurement]:
        """One measurement for each candidate, in their order, all of one device.

        Raises: what that device's runner raises, to this caller alone; the device is free again.
        """
        number = self._free.get()
        try:
            runner, held = self._runners[number], self._prepared[number]
            for key in held.keys() - self._workloads.keys():  # forgotten meanwhile
                runner.forget(key)
                del held[key]
            workload = self._workloads.get(workload_key)
            if workload is not None and held.get(workload_key) is not workload:
                runner.prepare(workload)
                held[workload_key] = workload
            rows = runner.submit(workload_key, candidates, options).result()
            name = runner.spec.name
            return [replace(row, instance=row.instance or name) for row in rows]
        finally:
            self._free.put(number)

    def close(self) -> None:
        """Releases every device."""
        for runner in self._runners:
            runner.close()
