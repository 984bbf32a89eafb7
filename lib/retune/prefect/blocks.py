"""Blocks of the Prefect server that a user names: `load_block`, and `block_notifier` for e-mail."""

from typing import Any, TypeVar, cast

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block

from retune.core.errors import InputError
from retune.nightly.notify import Notice, Notifier

B = TypeVar("B")


def load_block(slug: str, kind: type[B], *, where: str, example: str, purpose: str) -> B:
    """The block of that slug, which is of that kind.

    Raises: InputError, which begins with `where` the slug was given, if the server has no such
    block, or it does not serve the purpose; `example` is a slug of one that does.
    """
    try:
        block = cast(Any, Block.load(slug))
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"{where}: expected a block of the Prefect server such as {example}, got {slug!r}: "
            f"{error}"
        ) from error
    if not isinstance(block, kind):
        name = type(block).__name__
        raise InputError(f"{where}: expected a block that {purpose}, got {slug!r}, a {name}")
    return block


def block_notifier(slug: str) -> Notifier:
    """Tells by the block of that slug, such as `sendgrid-email/nights`.

    What it returns raises: InputError if the server has no such block, or it notifies nobody.
    """

    def tell(notice: Notice) -> None:
        block = load_block(
            slug,
            NotificationBlock,
            where="[notify] email_block",
            example="sendgrid-email/nights",
            purpose="notifies",
        )
        told = block.notify(body=notice.text, subject=notice.subject)
        assert told is None  # outside an event loop the call waits

    return tell
