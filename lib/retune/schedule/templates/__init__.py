"""All templates: importing this package registers those that come with retune."""

from retune.schedule.template import templates
from retune.schedule.templates import conv2d

__all__ = ["conv2d", "templates"]
