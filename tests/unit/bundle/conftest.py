"""A small plan with every feature: weights, an alias, two outputs, shared temporaries."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from retune.bundle.format import write_bundle
from retune.bundle.plan import NetworkPlan
from tests.support.bundle_fixtures import make_plan


@pytest.fixture
def plan() -> NetworkPlan:
    return make_plan()


@pytest.fixture
def folder(plan: NetworkPlan, tmp_path: Path) -> Path:
    """A written bundle of the plan."""
    return write_bundle(plan, tmp_path / "module")


@pytest.fixture
def with_launch() -> Callable[..., NetworkPlan]:
    """Changes fields of one launch of a plan."""

    def change(plan: NetworkPlan, position: int, **fields: object) -> NetworkPlan:
        launches = list(plan.launches)
        if "args" in fields:
            fields.setdefault("writes", fields["args"][-1:])  # type: ignore[index]
        launches[position] = replace(launches[position], **fields)  # type: ignore[arg-type]
        return replace(plan, launches=tuple(launches))

    return change


@pytest.fixture
def with_buffer() -> Callable[..., NetworkPlan]:
    """Changes fields of the buffer of that name."""

    def change(plan: NetworkPlan, name: str, **fields: object) -> NetworkPlan:
        buffers = tuple(
            replace(entry, **fields) if entry.name == name else entry  # type: ignore[arg-type]
            for entry in plan.buffers
        )
        return replace(plan, buffers=buffers)

    return change
