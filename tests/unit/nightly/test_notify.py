"""People are told of a night, or the log says why not; a night never fails of it."""

import json
import logging
import os
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from retune.core.errors import InputError
from retune.nightly.config import Event, NotifyConfig, WebhookConfig
from retune.nightly.notify import (
    PAUSES_S,
    Notice,
    Notifier,
    NotifyError,
    Told,
    check_environment,
    command_notifier,
    notifiers,
    send,
    wanted,
    webhook_notifier,
)

NOTICE = Notice(
    subject="retune night 2026-03-01: 1 of 2 bundles promoted",
    text="mlp/pocl: promoted",
    data={"promoted": 1, "gain": None},
    events=("promotion",),
)


class Hook:
    """A server on the loopback address that gives these answers, one after the other."""

    def __init__(self, answers: Sequence[int]) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        left = list(answers)
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                requests.append((self.path, dict(self.headers), body))
                code = left.pop(0)
                self.send_response(code)
                if code in (301, 302, 307):
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@contextmanager
def answering(*answers: int) -> Generator[Hook]:
    hook = Hook(answers)
    thread = threading.Thread(target=hook.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hook
    finally:
        hook.server.shutdown()
        thread.join()
        hook.server.server_close()


def posting(url: str, pauses: list[float], **headers: str) -> Notifier:
    config = WebhookConfig(url=url, headers=dict(headers), timeout_s=10)
    return webhook_notifier(config, {"TOKEN": "hunter2", "URL": url}, pauses.append)


def test_a_webhook_gets_the_notice_as_json_with_its_headers():
    with answering(204) as hook:
        posting(hook.url, [], Authorization="Bearer ${TOKEN}")(NOTICE)
    ((path, headers, body),) = hook.requests
    assert path == "/hook"
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Bearer hunter2"
    assert json.loads(body) == {
        "subject": NOTICE.subject,
        "text": NOTICE.text,
        "events": ["promotion"],
        "data": {"promoted": 1, "gain": None},
    }


def test_an_address_may_come_from_the_environment():
    with answering(200) as hook:
        config = WebhookConfig(url="${URL}")
        webhook_notifier(config, {"URL": hook.url})(NOTICE)
    assert len(hook.requests) == 1


def test_what_may_pass_is_tried_again_twice():
    pauses: list[float] = []
    with answering(503, 429, 200) as hook:
        posting(hook.url, pauses)(NOTICE)
    assert len(hook.requests) == 3
    assert pauses == list(PAUSES_S)


def test_after_the_third_failure_it_gives_up():
    with answering(500, 500, 500) as hook, pytest.raises(NotifyError, match="answered 500"):
        posting(hook.url, [])(NOTICE)
    assert len(hook.requests) == 3


@pytest.mark.parametrize("code", [400, 403, 404])
def test_what_would_be_refused_again_is_not_tried_again(code: int):
    with answering(code) as hook, pytest.raises(NotifyError, match=f"answered {code}"):
        posting(hook.url, [])(NOTICE)
    assert len(hook.requests) == 1


def test_secrets_are_not_sent_where_a_redirection_leads():
    with answering(302, 200) as hook, pytest.raises(NotifyError, match="answered 302"):
        posting(hook.url, [], Authorization="Bearer ${TOKEN}")(NOTICE)
    assert [path for path, _, _ in hook.requests] == ["/hook"]


def test_a_server_that_is_not_there_is_tried_again():
    with answering() as hook:
        url = hook.url
    pauses: list[float] = []
    with pytest.raises(NotifyError, match=r"webhook of 127.0.0.1: Connection refused"):
        posting(url, pauses)(NOTICE)
    assert pauses == list(PAUSES_S)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "nothing", "http://[", "http://a b/"])
def test_an_address_that_is_none_is_said_without_showing_it(url: str):
    with pytest.raises(NotifyError, match=r"webhook of \${URL}: ") as caught:
        webhook_notifier(WebhookConfig(url="${URL}"), {"URL": url}, lambda _: None)(NOTICE)
    assert url not in str(caught.value)


@pytest.mark.process
def test_a_command_reads_subject_and_text_and_gets_the_subject_in_its_arguments(tmp_path: Path):
    program = "import sys; open(sys.argv[1], 'w').write(sys.argv[2] + '|' + sys.stdin.read())"
    out = tmp_path / "told"
    odd = "a; $(touch x) {subject}"
    command_notifier((sys.executable, "-c", program, str(out), odd))(NOTICE)
    told = f"a; $(touch x) {NOTICE.subject}|{NOTICE.subject}\n\n{NOTICE.text}\n"
    assert out.read_text() == told


@pytest.mark.process
def test_a_commands_paths_are_relative_to_the_folder_of_the_file(tmp_path: Path):
    program = tmp_path / "tell.sh"
    program.write_text("#!/bin/sh\ncat > told\n")
    program.chmod(0o755)
    config = NotifyConfig(command=("./tell.sh",))
    notifiers(config, {}, folder=tmp_path)["command"](NOTICE)
    assert (tmp_path / "told").read_text() == f"{NOTICE.subject}\n\n{NOTICE.text}\n"


@pytest.mark.process
def test_a_command_that_fails_says_what_it_said():
    program = "import sys; sys.exit('no such mailbox')"
    with pytest.raises(NotifyError, match="ended with 1: no such mailbox"):
        command_notifier((sys.executable, "-c", program))(NOTICE)


def test_a_command_that_is_not_there_says_so():
    with pytest.raises(NotifyError, match="command /no/such: No such file"):
        command_notifier(("/no/such",))(NOTICE)


def test_a_command_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = f"sleep 600 > {pipe} & sleep 600"
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(NotifyError, match=r"did not end in 0.1 s and was killed"):
        command_notifier(("sh", "-c", program), timeout_s=0.1)(NOTICE)
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # its last writer is gone
    os.close(reader)


@pytest.mark.process
def test_a_command_may_close_its_input():
    command_notifier((sys.executable, "-c", "import os; os.close(0)"))(NOTICE)


def test_one_that_fails_does_not_keep_the_others_from_being_told(
    caplog: pytest.LogCaptureFixture,
):
    told: list[Notice] = []

    def broken(notice: Notice) -> None:
        raise RuntimeError("hunter2")

    def refused(notice: Notice) -> None:
        raise NotifyError("webhook of h: the server answered 500")

    with caplog.at_level(logging.WARNING):
        came = send(NOTICE, {"e-mail": broken, "webhook": refused, "command": told.append})
    assert told == [NOTICE]
    assert came == (
        Told(channel="e-mail", problem="e-mail: RuntimeError"),
        Told(channel="webhook", problem="webhook of h: the server answered 500"),
        Told(channel="command"),
    )
    assert "the server answered 500" in caplog.text and "RuntimeError" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("on", "events", "heard"),
    [
        (("failure",), ("promotion",), False),
        (("failure",), ("failure", "promotion"), True),
        (("promotion", "failure"), (), False),
        (("always",), (), True),
    ],
)
def test_only_what_was_asked_for_is_told(
    on: tuple[Event, ...], events: tuple[Event, ...], heard: bool
):
    notice = Notice(subject="s", text="t", data={}, events=events)
    assert wanted(NotifyConfig(on=on), notice) is heard


def test_variables_that_are_not_set_are_known_before_the_night():
    hook = WebhookConfig(url="${URL}", headers={"A": "${TOKEN} ${URL}"})
    config = NotifyConfig(webhook=hook, command=("mail", "me"))
    with pytest.raises(InputError, match="URL, TOKEN in the environment, URL is not set") as caught:
        check_environment(config, {"TOKEN": "hunter2", "URL": ""})
    assert "hunter2" not in str(caught.value)


def test_everyone_whom_the_configuration_names_is_told():
    hook = WebhookConfig(url="${URL}", headers={"A": "${TOKEN} ${URL}"})
    config = NotifyConfig(webhook=hook, command=("mail", "me"))
    mail: list[Notice] = []
    found = notifiers(config, {"TOKEN": "t", "URL": "http://h"}, {"e-mail": mail.append})
    assert list(found) == ["webhook", "command", "e-mail"]
    assert notifiers(NotifyConfig(), {}) == {}
