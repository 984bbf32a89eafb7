"""Plans of one network for different sizes as one plan. Read `join_plans`.

What they share is there once: inputs, outputs, sizes, weights of equal contents, and kernels of
equal text. Their temporaries have names of their own, and share the arena: those of one variant are
not alive when another one runs.
"""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from retune.bundle.plan import Alias, NetworkPlan, PlanHost, PlanLoop, renamed
from retune.bundle.sizes import PlanVariant
from retune.codegen.source import KernelLaunch, KernelText, ProgramBuffer
from retune.core.dims import Condition, SizeValues, always_same, dim_of
from retune.core.errors import InputError
from retune.core.keys import content_key


def join_plans(
    plans: Sequence[NetworkPlan], conditions: Sequence[Sequence[Condition]]
) -> NetworkPlan:
    """One plan with a variant for each of these, in a decision list with these conditions.

    What is noted, and random data, are those of the first one; so is its form, as one program runs
    all variants. Raises: InputError if they are not plans of one network and device for the same
    sizes.
    """
    first = plans[0]
    joined = _Joined()
    for plan, needed in zip(plans, conditions, strict=True):
        for name in ("inputs", "outputs", "sizes", "model_key", "options", "device"):
            if getattr(plan, name) != getattr(first, name):
                expected = f"expected {getattr(first, name)} as in all variants"
                raise InputError(f"{plan.name}: {name}: {expected}; got {getattr(plan, name)}")
        joined.add(plan, needed)
    return replace(
        first,
        kernels=tuple(joined.kernels.values()),
        buffers=tuple(joined.buffers.values()),
        launches=tuple(joined.launches),
        weights=joined.weights,
        aliases=tuple(joined.aliases.values()),
        hosts=tuple(joined.hosts),
        loops=tuple(joined.loops),
        variants=tuple(joined.variants),
    )


def with_sizes_of(plan: NetworkPlan, other: NetworkPlan, values: SizeValues) -> NetworkPlan:
    """The plan with the sizes, inputs and outputs of another one of the same network.

    It may have been made with numbers instead of some of these sizes, those among `values`, and is
    for these alone. Outputs that have other extents where its conditions hold stay its own.
    """
    made_for = {each.size.name for each in plan.sizes}
    fixed = {name: value for name, value in values.items() if name not in made_for}
    these = {each.size.name: dim_of(each.size) for each in other.sizes} | fixed
    shared = {name: other.buffer(name) for name in (*other.inputs, *other.outputs)}
    own = (
        there
        if (there := shared.get(b.name)) and always_same(there.at(these).shape, b.shape)
        else b
        for b in plan.buffers
        if b.role != "size"
    )
    sizes = (b for b in other.buffers if b.role == "size")
    return replace(
        plan,
        buffers=(*own, *sizes),
        sizes=other.sizes,
        values=other.values,
        indices=other.indices,
    )


@dataclass(slots=True, kw_only=True)
class _Joined:
    """The plan as it grows."""

    kernels: dict[str, KernelText] = field(default_factory=dict[str, KernelText])
    ranges: dict[str, str] = field(default_factory=dict[str, str])
    """Over which range each kernel is launched, as text."""
    buffers: dict[str, ProgramBuffer] = field(default_factory=dict[str, ProgramBuffer])
    launches: list[KernelLaunch] = field(default_factory=list[KernelLaunch])
    weights: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    contents: dict[str, str] = field(default_factory=dict[str, str])
    """The weights that are there, by what they hold."""
    aliases: dict[str, Alias] = field(default_factory=dict[str, Alias])
    hosts: list[PlanHost] = field(default_factory=list[PlanHost])
    loops: list[PlanLoop] = field(default_factory=list[PlanLoop])
    variants: list[PlanVariant] = field(default_factory=list[PlanVariant])

    def add(self, plan: NetworkPlan, conditions: Sequence[Condition]) -> None:
        """The plan is a variant."""
        names = self._names(plan)
        outputs = tuple(names.get(name, name) for name in plan.outputs)
        own = renamed(plan, names, self._kernel_names(plan))
        first, first_host = len(self.launches), len(self.hosts)
        self.kernels |= {kernel.name: kernel for kernel in own.kernels}
        self.ranges |= {launch.kernel: _range(launch) for launch in own.launches}
        self.buffers |= {entry.name: entry for entry in own.buffers}
        self.weights |= own.weights
        self.aliases |= {alias.value: alias for alias in own.aliases}
        self.launches += own.launches
        self.hosts += (replace(host, after=host.after + first) for host in own.hosts)
        self.loops += (
            replace(loop, first=loop.first + first, end=loop.end + first) for loop in own.loops
        )
        self.variants.append(
            PlanVariant(
                conditions=tuple(conditions),
                first=first,
                end=len(self.launches),
                first_host=first_host,
                end_host=len(self.hosts),
                outputs=() if outputs == plan.outputs else outputs,
            )
        )

    def _names(self, plan: NetworkPlan) -> dict[str, str]:
        """Buffer -> its name in the joined plan, where that is another one."""
        shared = self._shared_outputs(plan)
        counted = {each.input for each in plan.sizes if each.counted}
        taken = {*self.buffers}
        own = {entry.name for entry in plan.buffers}
        names: dict[str, str] = {}
        for entry in plan.buffers:
            fresh = entry.name
            if fresh in taken:
                fresh = _unused(fresh, taken | own)
            if entry.role == "weight":
                content = content_key(entry.shape, entry.image, plan.weights[entry.name])
                name = self.contents.setdefault(content, fresh)
            elif entry.role in ("input", "size") or entry.name in shared | counted:
                name = entry.name
            else:
                name = fresh
            taken.add(name)
            names[entry.name] = name
        return {name: new for name, new in names.items() if new != name}

    def _shared_outputs(self, plan: NetworkPlan) -> set[str]:
        """Outputs, and what they lie in, that are the same here as in the variants before."""
        roots, aliases = plan.roots, {alias.value: alias for alias in plan.aliases}
        found: set[str] = set()
        for name in plan.outputs:
            chain = [name]
            while chain[-1] in aliases:
                chain.append(aliases[chain[-1]].of)
            entries = {each: plan.buffer(each) for each in chain}
            same = all(
                str(self.buffers.get(each, entry)) == str(entry)
                and str(self.aliases.get(each)) == str(aliases.get(each))
                for each, entry in entries.items()
                if self.variants
            )
            if same and roots[name] not in plan.weights:
                found.update(chain)
        return found

    def _kernel_names(self, plan: NetworkPlan) -> dict[str, str]:
        """Kernel -> its name in the joined plan, where another one has its own.

        One kernel has one range: who runs many kernels counts their groups by kernel.
        """
        names: dict[str, str] = {}
        ranges = {launch.kernel: _range(launch) for launch in plan.launches}
        texts = "\n".join(kernel.text for kernel in (*self.kernels.values(), *plan.kernels))
        words = set(re.findall(r"\w+", texts))
        for kernel in plan.kernels:
            alike = (
                name
                for name, there in self.kernels.items()
                if name.startswith(kernel.name)
                and self.ranges[name] == ranges.get(kernel.name)
                and there.text == kernel.renamed(name).text
            )
            taken = kernel.name in self.kernels
            name = next(alike, _unused(kernel.name, words) if taken else kernel.name)
            names[kernel.name] = name
        return {name: new for name, new in names.items() if new != name}


def _range(launch: KernelLaunch) -> str:
    return f"{launch.global_size} {launch.local_size}"


def _unused(name: str, taken: Container[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}_v{number}"
    return found
