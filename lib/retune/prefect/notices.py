"""Telling people by a Prefect block, such as one that sends e-mail."""

from typing import cast

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block

from retune.core.errors import InputError
from retune.nightly.notify import Notice, Notifier


def block_notifier(slug: str) -> Notifier:
    """Tells by the block of that slug, such as `sendgrid-email/nights`.

    What it returns raises: InputError if the server has no such block, or it notifies nobody.
    """

    def tell(notice: Notice) -> None:
        told = _block(slug).notify(body=notice.text, subject=notice.subject)
        assert told is None  # outside an event loop the call waits

    return tell


def _block(slug: str) -> NotificationBlock:
    try:
        block = cast(Block, Block.load(slug))
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"[notify] email_block: expected a block of the Prefect server such as "
            f"sendgrid-email/nights, got {slug!r}: {error}"
        ) from error
    if not isinstance(block, NotificationBlock):
        raise InputError(
            f"[notify] email_block: expected a block that notifies, got {slug!r}, a "
            f"{type(block).__name__}"
        )
    return block
