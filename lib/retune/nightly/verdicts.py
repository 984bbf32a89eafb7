"""The morning's verdict on a network and a device: what is behind a change of its time.

Read `judge`. Everything follows from the rows of the table of nights (`retune.records.nights`).

Let n, c and k be the logarithms of three times of a night, taken in turns: of the bundle that is
published, of the control network and of the calibration kernel; x = n - c and y = n - k. Of former
nights, n, x and y are carried over to tonight's bundle: where a night published a faster one, its
gain, which was measured in turns, is added.

Level. A series is expected where the median of its last LEVEL nights is, of those since the last
change that lasts (`NightRow.new_level`). m nights give that median.

Noise. s is the spread of a series from night to night: that of differences of successive nights
over the root of two. It is robust: differences beyond four times their median absolute deviation
(times 1.4826) are left out, and so are changes that last. Of N differences it has f = 2N / 3
degrees of freedom, at least one. To their variance that of PRIOR_NIGHTS nights of spread PRIOR is
added, so that three alike nights do not make a fourth a surprise. Tonight's error is not less than
FLOOR, nor than the standard error r of its own turns: s' = max(s, r, FLOOR).

A change d = tonight's value - level has the standard error e = sqrt(s'^2 + s^2 pi / 2m). Its 95 %
interval is d +- e q and it is beyond noise if |d| > e q and |d| > LEAST, where q is the quantile of
Student's t of f degrees of freedom, at 95 % for the interval, and beyond noise at 1 - CHANCE. That
is much further out than the interval: a fleet asks a hundred times a night.

Verdicts, in this order:
  method    n or x moved beyond noise, and compiler (the driver), processor, version of retune,
            budget or control program are others than in the night before. The change is that of n.
            Where the controls moved along, which no version of retune and no budget would make
            them do, only compiler, processor and control program count.
  real      x moved beyond noise, beside what the controls moved (below), and y moved along: by more
            than half of it, the same way. (Otherwise it was the control network alone that moved.)
            The change is that of x.
  hardware  n moved beyond noise, and a control moved along. The change is that of n.
  real      nothing moved, and the night published a bundle that is faster beyond noise.
  noise     everything else. The change is that of x.

Networks do not slow down alike where a machine does: in one slow moment a kernel that computes
took 1.66 times as long, a network 1.26 times (`retune.records.cost`). So where a control moved by
h beyond noise, x has to move by UNLIKE |h| more to be real.

Without a calibration kernel (accelerators whose cycles are counted), n stands for y.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, inf, log, pi, sqrt

import numpy as np

from retune.records.nights import NightRow, NightVerdict

LEVEL = 10
"""Nights whose median is the level."""
SPREAD = 60
"""Nights, the latest ones, whose differences say what noise is."""
PRIOR, PRIOR_NIGHTS = 0.01, 3.0
"""What is believed of a series before it has nights of its own: one per cent, like three nights."""
FLOOR = 0.002
"""Two nights never agree more closely than that, whatever their turns say."""
LEAST = 0.01
"""Changes that are smaller than one per cent are not worth waking anybody up."""
CHANCE = 5e-4
"""Part of the nights without a change on which one moves beyond noise."""
Z_CHANCE, Z_95 = 3.481, 1.96
"""Quantiles of the normal distribution at CHANCE and at 5 %, both sides together."""
UNLIKE = 0.5
"""How unlike networks may react where the machine is what changed."""
_ALONG = 0.5
_OUTLIER = 4.0
_MAD = 1.4826
_EFFICIENCY = 2 / 3
"""Of successive differences, beside deviations from a mean that does not change."""

METHOD: Mapping[str, str] = {
    "driver": "compiler (driver)",
    "opencl": "compiler (OpenCL)",
    "host": "processor",
    "retune": "version of retune",
    "commit": "commit of retune",
    "budget": "budget",
    "control_program": "control program",
}
"""Columns that are a change of method where they change -> how people call them."""


MACHINE = ("driver", "opencl", "host", "control_program")
"""Those of them that move the controls as well."""


def changed_method(before: NightRow, after: NightRow, names: Iterable[str]) -> list[str]:
    """The columns among these in which the nights differ."""
    return [name for name in names if getattr(before, name) != getattr(after, name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelShift:
    """A series beside its level. Logarithms."""

    size: float
    error: float
    """Standard error."""
    freedom: float
    """Degrees of freedom that this is known with."""
    nights: int
    """Former nights that the level is of."""

    @property
    def interval(self) -> tuple[float, float, float]:
        """As a ratio, and the bounds of its 95 % interval."""
        reach = quantile_of(Z_95, self.freedom) * self.error
        return exp(self.size), exp(self.size - reach), exp(self.size + reach)

    def beyond(self, slack: float = 0.0) -> bool:
        """Whether it moved beyond noise, and by `slack` more."""
        return abs(self.size) > max(self.error * quantile_of(Z_CHANCE, self.freedom) + slack, LEAST)


@dataclass(frozen=True)
class Nights:
    """The rows of one network on one device, the oldest first, as series. Arrays: [nights]."""

    rows: Sequence[NightRow]

    @cached_property
    def time(self) -> np.ndarray:
        """log of the bundle's time in us; NaN where there is none."""
        return self._log("time_us")

    @cached_property
    def control(self) -> np.ndarray:
        """The same of the control network."""
        return self._log("control_us")

    @cached_property
    def kernel(self) -> np.ndarray:
        """The same of the calibration kernel."""
        return self._log("kernel_us")

    @cached_property
    def ratio(self) -> np.ndarray:
        """log of the bundle's time over the control network's."""
        return self._log("ratio")

    @cached_property
    def carried(self) -> np.ndarray:
        """What the gains of bundles that were published meanwhile change until the last night.

        The night that publishes a bundle still times the one before it.
        """
        gains = np.nan_to_num(self._log("gain")) * [row.promoted for row in self.rows]
        return gains[::-1].cumsum()[::-1] - gains[-1]

    @cached_property
    def same_control(self) -> np.ndarray:
        """bool: the control network is the last night's program."""
        return np.array([r.control_program == self.rows[-1].control_program for r in self.rows])

    @cached_property
    def since(self) -> np.ndarray:
        """bool: nights since the last change that lasts, by what was said of those before the last
        night."""
        changes = np.flatnonzero([row.new_level for row in self.rows[:-1]])
        return np.arange(len(self.rows)) >= (changes[-1] if len(changes) else 0)

    def _log(self, name: str) -> np.ndarray:
        values = np.array([getattr(row, name) for row in self.rows], float)
        return np.log(np.where(values > 0, values, np.nan))


def judge(former: Sequence[NightRow], tonight: NightRow) -> NightRow:
    """Tonight's row with its verdict; `former` are nights of the same network and device, judged,
    the oldest first."""
    if tonight.time_us is None:
        return _judged(tonight, "", None, tonight.problem or "there is no absolute time")
    known = [row for row in former if row.time_us is not None]
    if not known:
        why = "the first night with a time of it: there is nothing to compare it with"
        return _judged(tonight, "noise", None, _and_promoted(why, tonight))
    return _verdict(_changes([*former[-SPREAD:], tonight], None), known[-1], tonight)


def compare(former: Sequence[NightRow], first: NightRow, second: NightRow) -> NightRow:
    """The second night's row, with the verdict on it beside the first night alone.

    `former` are all nights of the network and device, which say what noise is.
    """
    if first.time_us is None or second.time_us is None:
        missing = first if first.time_us is None else second
        why = f"night {missing.night}: {missing.problem or 'there is no absolute time'}"
        return _judged(second, "", None, why)
    others = [row for row in former if row.night not in (first.night, second.night)]
    changes = _changes([*others, first, second], len(others))
    found = _verdict(changes, first, replace(second, promoted=False, gain=None))
    return replace(found, promoted=second.promoted, gain=second.gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    time: LevelShift
    control: LevelShift
    kernel: LevelShift | None
    ratio: LevelShift
    over_kernel: LevelShift
    """Of the time over the calibration kernel's, or else the time itself."""


def _changes(rows: Sequence[NightRow], level: int | None) -> _Changes:
    """The last row's changes, beside the usual level, or the row of that number alone."""
    nights, last = Nights(rows), rows[-1]
    where = nights.since.copy() if level is None else np.arange(len(rows)) == level
    where[-1] = False
    carried = nights.carried if level is None else np.zeros(len(rows))
    within = {
        name: _own_error(getattr(last, f"{name}_low{unit}"), getattr(last, f"{name}_high{unit}"))
        for name, unit in (("time", "_us"), ("control", "_us"), ("kernel", "_us"), ("ratio", ""))
    }
    same = np.where(nights.same_control, 0.0, np.nan)
    time, kernel = nights.time + carried, nights.kernel
    own_y = sqrt(within["time"] ** 2 + within["kernel"] ** 2)
    moved = change_of(time, where, within["time"])
    has_kernel = bool(np.isfinite(kernel[-1]))
    return _Changes(
        time=moved,
        control=change_of(nights.control + same, where, within["control"]),
        kernel=change_of(kernel, where, within["kernel"]) if has_kernel else None,
        ratio=change_of(nights.ratio + carried + same, where, within["ratio"]),
        over_kernel=change_of(time - kernel, where, own_y) if has_kernel else moved,
    )


def change_of(values: np.ndarray, level: np.ndarray, own_error: float = 0.0) -> LevelShift:
    """The last value beside the median of those at `level` (bool), all of them logarithms.

    `own_error` is the standard error of the last one. Nothing is beyond noise where nothing is
    known.
    """
    known = np.isfinite(values)
    base = values[:-1][level[:-1] & known[:-1]][-LEVEL:]
    if not known[-1] or not len(base):
        return LevelShift(size=0.0, error=inf, freedom=PRIOR_NIGHTS, nights=0)
    spread, freedom = spread_of(values[:-1][known[:-1]])
    error = sqrt(max(spread, own_error, FLOOR) ** 2 + spread**2 * pi / 2 / len(base))
    size = float(values[-1] - np.median(base))
    return LevelShift(size=size, error=error, freedom=freedom, nights=len(base))


def quantile_of(normal: float, freedom: float) -> float:
    """Student's t where the normal distribution has that quantile, by the first term beyond it."""
    return normal + (normal**3 + normal) / (4 * freedom)


def spread_of(values: np.ndarray) -> tuple[float, float]:
    """The standard deviation of a night, by these, and its degrees of freedom."""
    steps = np.diff(values)
    least = _MAD * float(np.median(np.abs(steps))) if len(steps) else 0.0
    kept = steps[np.abs(steps) <= _OUTLIER * max(least, FLOOR)]
    variance = float(np.mean(kept**2)) / 2 if len(kept) else 0.0
    freedom = _EFFICIENCY * len(kept)
    believed = PRIOR_NIGHTS * PRIOR**2 + freedom * variance
    return sqrt(believed / (PRIOR_NIGHTS + freedom)), max(freedom, 1.0)


def _own_error(low: float | None, high: float | None) -> float:
    """Of a logarithm, by its 95 % interval."""
    if low is None or high is None or min(low, high) <= 0:
        return 0.0
    return log(high / low) / (2 * Z_95)


def _verdict(found: _Changes, before: NightRow, tonight: NightRow) -> NightRow:
    """Tonight's row, judged by these changes; `before` is the night that it is compared with."""
    controls = [c for c in (found.control, found.kernel) if c is not None]
    moved = max((abs(c.size) for c in controls if c.beyond()), default=0.0)
    real = found.ratio.beyond(UNLIKE * moved) and _along(found.over_kernel, found.ratio)
    machine = found.time.beyond() and any(_along(c, found.time) for c in controls) and not real
    method = changed_method(before, tonight, MACHINE if machine else METHOD)
    if method and (found.time.beyond() or found.ratio.beyond()):
        return _changed(tonight, "method", found.time, _why_method(method, before, tonight))
    if real:
        return _changed(tonight, "real", found.ratio, _why_real(found, before, tonight))
    if machine:
        return _changed(
            tonight, "hardware", found.time, f"the controls moved along: {_controls(found)}"
        )
    if (gain := _gain(tonight)) is not None and gain.beyond():
        why = "the night published a bundle that is faster"
        return _judged(tonight, "real", gain, why)
    nights = found.ratio.nights or found.time.nights
    count = "1 former night" if nights == 1 else f"{nights} former nights"
    shown = found.ratio if found.ratio.nights else found.time
    return _judged(tonight, "noise", shown, _and_promoted(f"within the noise of {count}", tonight))


def _along(change: LevelShift, other: LevelShift) -> bool:
    """Whether it moved the same way, by more than half as much."""
    return change.nights > 0 and change.size * np.sign(other.size) > _ALONG * abs(other.size)


def _gain(row: NightRow) -> LevelShift | None:
    """What the night's own bundle brought; its noise is that of the turns in which it was timed."""
    if not row.promoted or row.gain is None:
        return None
    error = max(_own_error(row.gain_low, row.gain_high), FLOOR)
    return LevelShift(size=log(row.gain), error=error, freedom=inf, nights=1)


def _judged(row: NightRow, verdict: NightVerdict, change: LevelShift | None, why: str) -> NightRow:
    ratio, low, high = change.interval if change and change.nights else (None, None, None)
    return replace(
        row, verdict=verdict, change=ratio, change_low=low, change_high=high, why=why,
        new_level=False,
    )  # fmt: skip


def _changed(row: NightRow, verdict: NightVerdict, change: LevelShift, why: str) -> NightRow:
    """A change that is expected to last: the levels begin anew."""
    return replace(_judged(row, verdict, change, _and_promoted(why, row)), new_level=True)


def _and_promoted(why: str, row: NightRow) -> str:
    return f"{why}; the night published another bundle ({row.gain:.3f}x)" if row.gain else why


def _why_method(names: Sequence[str], before: NightRow, tonight: NightRow) -> str:
    changes = [
        f"another {METHOD[name]}: {getattr(before, name) or 'none'} -> "
        f"{getattr(tonight, name) or 'none'}"
        for name in names
    ]
    return " and ".join(changes)


def _why_real(found: _Changes, before: NightRow, tonight: NightRow) -> str:
    if before.program == tonight.program:
        own = "the same bundle"
    elif before.promoted:
        own = "the bundle that was published then"
    else:
        own = "another bundle, published without a comparison,"
    return f"{own} took {found.time.interval[0]:.3f}x the time; {_controls(found)}"


def _controls(found: _Changes) -> str:
    text = f"the control network took {found.control.interval[0]:.3f}x"
    if found.kernel is not None:
        text += f", the calibration kernel {found.kernel.interval[0]:.3f}x"
    return text
