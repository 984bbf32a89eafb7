"""A plan of layouts as what a network is laid out by."""

from retune.pipeline.layout_plan import LayoutPlan
from retune.search.layout.laying import Kept, LayoutChoice
from retune.search.layout.layouts import IN_ROWS, Ends


def choice_of(plan: LayoutPlan) -> LayoutChoice:
    """The images and kernels that are not in rows."""
    ends = {kernel.group: Ends(kernel.read, kernel.made) for kernel in plan.kernels}
    return LayoutChoice(
        kept={image.image: Kept(image.made, image.copies) for image in plan.images},
        ends={group: found for group, found in ends.items() if found != IN_ROWS},
    )
