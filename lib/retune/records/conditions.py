"""Under which conditions a time was taken: times compare only where these are equal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retune.core.keys import content_key
from retune.core.layouts import NHWC, ActivationLayout, IOLayouts
from retune.core.target import DeviceSpec

ALONE = "alone"
"""Place of a kernel that is timed by itself, call after call."""
WARM = "warm"
"""Source of constants that each call reads again: whichever caches they fit into."""
CONSTANTS = ("memory", "l3", "l2", "l1", WARM)
"""Where constants come from on a device whose caches are known, the farthest first."""
ROWS = "rows"
"""What files of earlier versions call NHWC: `rows+16` is NHWC+16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions of a measurement: all that a time depends on besides the candidate."""

    device: str
    """DeviceSpec.fingerprint: model, driver and OpenCL version."""
    instance: str
    """Which of several equal devices: its name on the command line."""
    host: str
    """Processor, cores and caches of the machine that the device is in."""
    compute_units: int
    """How many of them the device used."""
    affinity: str
    """Cores on which the measuring process may run, and whether threads are pinned to them. Empty
    for a device that has cores of its own."""
    spread_bytes: int
    """Successive calls read their constants from so many bytes; 0: each reads the same."""
    constants: str
    """The memory that constants so come from: see `constants_from`."""
    flush: bool
    """The caches were emptied before each repeat."""
    place: str = ALONE
    """ALONE, or in its network: see `within`."""
    layout_in: ActivationLayout = NHWC
    """Of the activation that the task reads: `NCHW16c`, say. Files of earlier versions say `rows`
    for NHWC."""
    layout_out: ActivationLayout = NHWC
    """Of the activation that it makes, and of what is added to it."""

    @property
    def key(self) -> str:
        """Equal where times are comparable.

        Part of it are device, compute units, `constants`, flush, place and layouts. So are host and
        affinity where the host's cores compute; a kernel on a GPU knows nothing of either. Not part
        of it are `spread_bytes`, which differs for each network and tells only by the memory it
        leads to, and the instance: equal devices differ by their clocks, which costs make up for,
        and one of eight GPUs should not have to be tuned again for the others.
        """
        host = (self.host, self.affinity) if self.affinity else ()
        how = (self.constants, self.flush, self.place)
        io = (self.layout_in, self.layout_out)
        layouts = (tuple(layout.replace(NHWC, ROWS) for layout in io),)  # as keys in files have it
        if self._is_nhwc:
            layouts = ()
        return content_key(self.device, self.compute_units, host, how, *layouts)

    @property
    def comparable(self) -> Mapping[str, str | Sequence[str | None]]:
        """A filter for a store: records of these conditions, and records that may be of them.

        Records of before this column say which device they are of, and nothing else. They count for
        every condition of that device, but for layouts and networks, of which there were none:
        nobody's measurements are lost, and two records whose conditions are both known are never
        mixed.
        """
        unstated = [None] if self._is_nhwc and self.place == ALONE else []
        return {"device": self.device, "conditions": [self.key, *unstated]}

    @property
    def _is_nhwc(self) -> bool:
        return IOLayouts(self.layout_in, self.layout_out) == IOLayouts()


def within(model_key: str, layouts: str = "") -> str:
    """Place of a kernel that is timed while the whole network runs.

    `layouts` names a plan of layouts: with other copies around it, a kernel takes another time.
    """
    return f"network:{model_key}" + (f":{layouts}" if layouts else "")


def constants_from(spec: DeviceSpec, spread_bytes: int) -> str:
    """The smallest cache that holds so many bytes (`l1`, `l2`, `l3`), or else `memory`.

    WARM for none; of a device whose caches are unknown the next power of two, in bytes.
    """
    if not spread_bytes:
        return WARM
    caches = {"l1": spec.l1_bytes, "l2": spec.l2_bytes, "l3": spec.l3_bytes}
    if not any(caches.values()):
        return f"{1 << (spread_bytes - 1).bit_length()} bytes"
    return next((name for name, size in caches.items() if spread_bytes <= size), "memory")


def group(task_key: str, conditions: str | None) -> str:
    """Name of the records of a task whose costs compare: of equal conditions, known or not."""
    return f"{task_key}|{conditions or ''}"
