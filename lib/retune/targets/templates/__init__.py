"""All templates: importing this package registers those that come with retune."""

from retune.targets.template import templates
from retune.targets.templates import conv2d

__all__ = ["conv2d", "templates"]
