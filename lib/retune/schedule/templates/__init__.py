"""All templates: importing this package registers those that come with retune."""

from retune.schedule.template import templates

__all__ = ["templates"]
