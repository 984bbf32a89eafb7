"""Blocks that a user names: what they are for, and what is said of those that are not for that."""

import pytest
from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block
from prefect.filesystems import LocalFileSystem

from retune.core.errors import InputError
from retune.nightly.notify import Notice
from retune.prefect.blocks import block_notifier

NOTICE = Notice(subject="a night", text="two bundles", data={})
HEARD: list[tuple[str, str | None]] = []


class Listener(NotificationBlock):
    """A block that remembers what it is told."""

    def notify(self, body: str, subject: str | None = None) -> None:  # type: ignore[override]
        """Remembers it."""
        HEARD.append((body, subject))


def test_people_are_told_by_the_block_of_that_name(monkeypatch: pytest.MonkeyPatch):
    blocks: dict[str, Block] = {"listener/nights": Listener()}
    monkeypatch.setattr(Block, "load", blocks.__getitem__)
    HEARD.clear()
    block_notifier("listener/nights")(NOTICE)
    assert HEARD == [("two bundles", "a night")]


def test_a_block_that_notifies_nobody_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Block, "load", lambda _: LocalFileSystem())
    with pytest.raises(InputError, match=r"email_block: expected a block that notifies, got 'x/y'"):
        block_notifier("x/y")(NOTICE)


def test_a_block_that_the_server_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch):
    def load(slug: str) -> Block:
        raise ValueError(f"unable to find block document {slug}")

    monkeypatch.setattr(Block, "load", load)
    with pytest.raises(InputError, match="such as sendgrid-email/nights, got 'x/y': unable to"):
        block_notifier("x/y")(NOTICE)
