"""The fields of a request as the parameters of a flow: Prefect's form shows each of them."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import Field

from retune.core.schema import Meta
from retune.pipeline.request import Option, TuneRequest, options

R = TypeVar("R")

_LIMITS = ("ge", "gt", "le", "lt")


def with_parameters(**forms: Any) -> Callable[[Callable[[TuneRequest], R]], Callable[..., R]]:
    """Decorates a function of a request: its parameters are the request's fields.

    `forms` are the types of those whose form differs from the field's type.
    """

    def decorate(body: Callable[[TuneRequest], R]) -> Callable[..., R]:
        def run(**values: Any) -> R:
            return body(TuneRequest(**values))

        known = options()
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if each.default is ... else each.default,
                annotation=_annotation(each, forms.get(name, each.hint)),
            )
            for name, each in known.items()
        ]
        made: Any = run
        made.__name__ = made.__qualname__ = body.__name__
        made.__module__ = body.__module__
        made.__signature__ = inspect.Signature(
            parameters, return_annotation=inspect.signature(body).return_annotation
        )
        helps = "\n".join(f"    {name}: {each.help}" for name, each in known.items())
        made.__doc__ = f"{inspect.cleandoc(body.__doc__ or '')}\n\nArgs:\n{helps}"
        return run

    return decorate


def _annotation(each: Option, hint: Any) -> Any:
    """The type, with limits as pydantic writes them."""
    kind = each.kind if hint is each.hint else hint
    limits = {
        name: value
        for meta in (hint, *get_args(hint))
        if get_origin(meta) is Annotated
        for limit in get_args(meta)[1:]
        if isinstance(limit, Meta)
        for name in _LIMITS
        if (value := getattr(limit, name)) is not None
    }
    form = kind | None if each.default is None else kind
    return Annotated[form, Field(**limits)] if limits else form
