"""Selection of a plan's fastest form on a device, by measuring whole calls.

Read `best_form`. A network's size does not say it: waking the device's threads costs as much as
some hundred thousand multiply-adds, and how far several threads shorten a network depends on its
steps. Nor does it on a GPU: a persistent kernel saves launches, but its groups have one size
and one number of registers for all steps, where launches have those of each kernel.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from statistics import median

from retune.bundle.plan import Form, NetworkPlan
from retune.bundle.runtime.executor import forms_here
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import Benchmark, BenchOptions, Contender, compare_times
from retune.device.opencl.runtime import BuildFailed, Device, LaunchFailed

WAKE_S = 40e-6
"""What waking and awaiting the device's threads costs a call, and about the most that one thread
gains. Measured with PoCL on two cores: a launch of the persistent kernel of `zoo:mlp` takes 31 to
49 us, and its steps 5 us once the threads are at it; one thread takes 33 us off a call of `zoo:mlp`
and 46 us off one of `zoo:kws`."""
WORTHWHILE = 0.04
"""Less than this part of a call is less than what two measurements of it often differ by."""
LONGEST_S = WAKE_S / WORTHWHILE
"""Calls that take longer than this (1 ms) cannot gain a worthwhile part."""

OPTIONS = BenchOptions(budget_s=2.0, min_rounds=9, min_sample_s=2e-3)
"""Medians of at least nine samples of about ten to a hundred calls."""


def forms_worth_timing(plan: NetworkPlan, device: Device) -> tuple[Form, ...]:
    """The usual form, and where launches could run in another one also that; nothing is run."""
    forms = forms_here(plan, device)
    return forms if plan.launches and not plan.simulated_s else forms[:1]


def best_form(
    plan: NetworkPlan,
    device: Device,
    compare: Callable[[Mapping[str, Contender]], Benchmark] | None = None,
) -> NetworkPlan:
    """The plan in the form whose whole calls, copies included, take the least time on the device.

    The usual form if the device builds only that, or if other forms cannot gain a worthwhile part.
    The caller holds the device's lease. For a plan that may hang there is `examiner.Examiner`.
    """
    forms = forms_worth_timing(plan, device)
    usual = replace(plan, form=forms[0])
    if len(forms) == 1:
        return usual
    modules: dict[Form, Module] = {forms[0]: Module(usual, device)}
    if forms[0] == "persistent" and median(modules[forms[0]].benchmark()) > LONGEST_S:
        return usual
    for form in forms[1:]:
        with suppress(BuildFailed, LaunchFailed):  # one kernel of many may ask too much of a device
            modules[form] = Module(replace(plan, form=form), device)
    if len(modules) == 1:
        return usual
    feeds = modules[forms[0]].random_inputs()
    calls: dict[str, Contender] = {f: partial(module.run, feeds) for f, module in modules.items()}
    outcome = (compare or _compare)(calls)
    best: Form = min(modules, key=lambda form: outcome.timing(form).median_s)
    return replace(plan, form=best)


def _compare(calls: Mapping[str, Contender]) -> Benchmark:
    return compare_times(calls, options=OPTIONS)
