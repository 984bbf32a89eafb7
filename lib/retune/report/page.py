"""Common parts of pages: style, script, and formatting of numbers.

Pages need no network. Their script sorts and filters tables; without it they show the same.

Read `page`. A template is rendered strictly: a name that it does not get is an error.
"""

from importlib.resources import files

from retune.core import quantities


def page(template: str, **values: object) -> str:
    """The HTML text of a template of this package, with these values and the common style."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        time=time_text,
        flop=quantities.flop_text,
        count=_count,
        percent=_percent,
        shape=_shape,
    )
    folder = files("retune.report")
    source = folder.joinpath(template).read_text(encoding="utf-8")
    style = folder.joinpath("page.css").read_text(encoding="utf-8").rstrip()
    script = folder.joinpath("page.js").read_text(encoding="utf-8").rstrip()
    return environment.from_string(source).render(style=style, script=script, **values)


def time_text(us: float | None) -> str:
    """Three significant digits and a unit."""
    return "–" if us is None else quantities.time_text(us)


def _count(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _percent(part: float | None) -> str:
    return "–" if part is None else f"{100 * part:.1f} %"


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"
