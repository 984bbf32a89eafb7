"""Kernels from texts written by hand, and back."""

from collections.abc import Mapping

from retune.bundle.manifest import described_by_text
from retune.bundle.plan import NetworkPlan
from retune.codegen.source import KernelText


def kernels_of(texts: Mapping[str, str]) -> tuple[KernelText, ...]:
    """The kernels by their entry points, with the properties that their texts show."""
    return tuple(described_by_text(name, text) for name, text in texts.items())


def texts_of(plan: NetworkPlan) -> dict[str, str]:
    """Entry point -> text."""
    return {kernel.name: kernel.text for kernel in plan.kernels}
