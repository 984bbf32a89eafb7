"""A plan of layouts as plain data: where a network's images lie, and what that should take."""

from dataclasses import dataclass, replace

from retune.core.layouts import ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidImage:
    """An image that does not lie in rows alone."""

    image: str
    made: str
    """The layout in which its kernel leaves it."""
    copies: tuple[str, ...] = ()
    """Those that it is copied to."""
    us: float = 0.0
    """What the copies take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidKernel:
    """A kernel of the network, and the layouts in which it finds and leaves its images."""

    group: str
    read: str
    made: str
    task_key: str = ""
    us: float = 0.0
    """Its best time so; 0 where it is not known."""
    rows_us: float = 0.0
    """The same with all images in rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlan:
    """Where a network's images lie; those not named, and the ends of such kernels, are rows."""

    images: tuple[LaidImage, ...] = ()
    kernels: tuple[LaidKernel, ...] = ()

    @property
    def placement(self) -> "LayoutPlan":
        """The same without times, and without kernels whose images lie in rows."""
        ends = [k for k in self.kernels if not k.read == k.made == ROWS]
        return LayoutPlan(
            images=tuple(replace(image, us=0.0) for image in self.images),
            kernels=tuple(replace(k, task_key="", us=0.0, rows_us=0.0) for k in ends),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTotal:
    """What a plan of layouts would take by the costs of its kernels and copies."""

    name: str
    us: float
    copies: int
    """Images that are copied."""
    optimal: bool | None = None
    """Whether nothing costs less, and that is proven; None: it is no solver's."""


ALL_IN_ROWS = LayoutPlan()
"""All images in rows."""
