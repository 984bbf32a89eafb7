"""All templates: importing this package registers those that come with retune."""

from retune.rules.template import templates
from retune.rules.templates import conv2d

__all__ = ["conv2d", "templates"]
