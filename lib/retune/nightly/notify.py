"""Telling people of a night: a request to a web address, a program, or whatever is passed in.

Read `notifiers` and `send`. Telling never fails a night: what goes wrong is logged and returned,
without the values of variables, since they are secrets.
"""

import http.client
import json
import logging
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from retune.core.errors import InputError, RetuneError
from retune.nightly.config import VARIABLE, Event, NotifyConfig, WebhookConfig
from retune.pipeline.rows import Row

_LOG = logging.getLogger(__name__)

PAUSES_S = (1.0, 5.0)
"""Before a request is tried again."""
COMMAND_TIMEOUT_S = 60.0
_SAID_CHARS = 200
"""Of what a failed program said."""
_PASSING = (408, 425, 429)
"""Answers that may be others the next time, as those from 500 on may."""
_HANDLERS = (
    *(urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler),
    *(urllib.request.HTTPErrorProcessor, urllib.request.HTTPDefaultErrorHandler),
    urllib.request.UnknownHandler,
)
"""No files, and no redirections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What people are told of a night."""

    subject: str
    """One line."""
    text: str
    """Plain lines, which read well as Markdown too."""
    data: Row
    """The same for programs: what JSON can say."""
    events: tuple[Event, ...] = ()
    """What happened that somebody may want to hear of."""


Notifier = Callable[[Notice], None]
"""Tells somebody. Raises: any exception where that fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came of telling somebody."""

    channel: str
    """`webhook`, `command`, or what a caller calls it."""
    problem: str = ""
    """Why they do not know; empty if they do."""


class NotifyError(RetuneError):
    """Somebody could not be told."""


def wanted(config: NotifyConfig, notice: Notice) -> bool:
    """True if the notice is of something that is to be heard of."""
    return "always" in config.on or any(event in config.on for event in notice.events)


def check_environment(config: NotifyConfig, environment: Mapping[str, str]) -> None:
    """Holds after the call: every variable that notifications need is set, and not empty.

    Raises: InputError naming those that are not.
    """
    needed = config.webhook.variables if config.webhook else ()
    missing = [name for name in needed if not environment.get(name)]
    if missing:
        raise InputError(
            f"[notify] webhook: expected the variables {', '.join(needed)} in the environment, "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; set "
            f"{'it' if len(missing) == 1 else 'them'} where nights are run"
        )


def notifiers(
    config: NotifyConfig,
    environment: Mapping[str, str],
    others: Mapping[str, Notifier] | None = None,
    folder: Path = Path(),
) -> dict[str, Notifier]:
    """Whom the configuration names, by channel: the webhook, the command, and then `others`.

    `folder` is that of the configuration's file, where the command is run.
    `check_environment` says whether the variables that they need are there.
    """
    found: dict[str, Notifier] = {}
    if (hook := config.webhook) is not None:
        found["webhook"] = webhook_notifier(hook, environment)
    if command := config.command:
        found["command"] = command_notifier(command, folder)
    return {**found, **(others or {})}


def send(notice: Notice, to: Mapping[str, Notifier]) -> tuple[Told, ...]:
    """Tells each of them, and gives what came of it."""
    return tuple(_told(notice, channel, notifier) for channel, notifier in to.items())


def _told(notice: Notice, channel: str, notifier: Notifier) -> Told:
    try:
        notifier(notice)
    except RetuneError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - a night does not fail since nobody hears of it
        problem = f"{channel}: {type(error).__name__}"  # its text may hold a secret
    else:
        return Told(channel=channel)
    _LOG.warning("%s", problem)
    return Told(channel=channel, problem=problem)


def webhook_notifier(
    config: WebhookConfig,
    environment: Mapping[str, str],
    pause: Callable[[float], None] = time.sleep,
) -> Notifier:
    """POSTs `{"subject", "text", "events", "data"}` as JSON; an answer of 2xx counts as told.

    What may pass (no connection, an error of the server) is tried again after each of PAUSES_S.
    Redirections are not followed: the headers are meant for this address alone.
    """

    def post(notice: Notice) -> None:
        url = _filled(config.url, environment)
        headers = {name: _filled(value, environment) for name, value in config.headers.items()}
        body = {
            "subject": notice.subject,
            "text": notice.text,
            "events": list(notice.events),
            "data": notice.data,
        }
        for pause_s in (*PAUSES_S, None):
            problem, passing = _post(url, headers, json.dumps(body).encode(), config.timeout_s)
            if not problem:
                return
            if not passing or pause_s is None:
                raise NotifyError(f"webhook of {_host(config.url)}: {problem}")
            pause(pause_s)

    return post


def command_notifier(
    command: Sequence[str], folder: Path = Path(), timeout_s: float = COMMAND_TIMEOUT_S
) -> Notifier:
    """Runs the program in that folder with these arguments, no shell between; subject and text are
    its input.

    `{subject}` in an argument stands for the subject. What takes longer than `timeout_s` is killed,
    with all that it started.
    """

    def run(notice: Notice) -> None:
        arguments = [argument.replace("{subject}", notice.subject) for argument in command]
        words = f"{notice.subject}\n\n{notice.text}\n".encode()
        try:
            process = subprocess.Popen(
                arguments,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                process_group=0,
            )
        except OSError as error:
            raise NotifyError(f"command {command[0]}: {_words(error)}") from None
        with process:
            try:
                errors = process.communicate(words, timeout=timeout_s)[1]
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise NotifyError(
                    f"command {command[0]}: did not end in {timeout_s:g} s and was killed"
                ) from None
        if process.returncode:
            said = errors.decode(errors="replace").strip()[-_SAID_CHARS:] or "it said nothing"
            raise NotifyError(f"command {command[0]}: ended with {process.returncode}: {said}")

    return run


def _filled(text: str, environment: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda match: environment.get(match[1], ""), text)


def _post(url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> tuple[str, bool]:
    """Why the request failed, empty if it did not; and whether that may pass.

    Of an error only what cannot hold a secret: an address that was filled in may be one.
    """
    opener = urllib.request.OpenerDirector()
    for handler in _HANDLERS:
        opener.add_handler(handler())
    try:
        request = urllib.request.Request(
            url, body, {"Content-Type": "application/json", **headers}, method="POST"
        )
        with opener.open(request, timeout=timeout_s):
            return "", False
    except urllib.error.HTTPError as error:
        error.close()
        return f"the server answered {error.code}", error.code >= 500 or error.code in _PASSING
    except urllib.error.URLError as error:
        if isinstance(error.reason, OSError):
            return _words(error.reason), True
        return "the address cannot be used", False
    except (ValueError, http.client.InvalidURL):
        return "the address or a header cannot be used", False
    except (OSError, http.client.HTTPException) as error:
        return _words(error), True


def _host(url: str) -> str:
    """Whose address it is: its path may be a secret, and so may what a variable stands for."""
    try:
        return urlsplit(url).hostname or url
    except ValueError:
        return "an address that cannot be used"


def _words(error: Exception) -> str:
    """What went wrong, without anything that a user wrote."""
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__
