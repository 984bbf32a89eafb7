"""Telling people by a Prefect block, such as one that sends e-mail."""

from prefect.blocks.abstract import NotificationBlock

from retune.nightly.notify import Notice, Notifier
from retune.prefect.blocks import load_block


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
