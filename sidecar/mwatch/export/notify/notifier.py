# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Sends messages to services that the user configured as URLs of the `apprise` library.

Each URL has a thread and a short queue, so that a service that does not respond delays neither the
caller nor the other services. A URL contains the secret of its service, so it is never printed;
messages refer to it by its number and kind. `apprise` needs half as much memory as a sidecar, and
is imported only here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mwatch.errors import InputError
from mwatch.export.drop_queue import DropQueue
from mwatch.export.notify.message import Level, Message, together

if TYPE_CHECKING:
    from apprise import Apprise

_INSTALL = 'pip install "mwatch[notify]"'
_PAUSE_SECONDS = 1.0
_TYPES = {Level.RECOVERED: "success", Level.WARNING: "warning", Level.CRITICAL: "failure"}


class NotifyLimits(NamedTuple):
    message_seconds: float = 20.0
    """Time limit for one message, whatever its service does."""
    max_queued: int = 64
    max_urls: int = 16


class Notifier:
    def __init__(self, urls: Sequence[str], *, limits: NotifyLimits | None = None) -> None:
        """InputError if a URL is invalid, or if `apprise` is not installed."""
        limits = limits or NotifyLimits()
        if len(urls) > limits.max_urls:
            raise InputError(f"--notify: at most {limits.max_urls} URLs, not {len(urls)}")
        services = [_service(url, number) for number, url in enumerate(urls, 1)]
        self._channels = [_Channel(service, limits) for service in services]

    @property
    def sent(self) -> int:
        return sum(each.sent for each in self._channels)

    @property
    def failed(self) -> int:
        """Number of messages that a service rejected, that timed out or that were dropped."""
        return sum(each.failed + each.queue.dropped for each in self._channels)

    def send(self, message: Message) -> None:
        """Queue a message; never waits."""
        for channel in self._channels:
            channel.queue.put(message)

    def problems(self) -> list[str]:
        """Problems of failed services, the first of each; the same one may be returned again."""
        return [each.problem for each in self._channels if each.problem is not None]

    def close(self, seconds: float) -> None:
        """Wait up to `seconds` for the queues to be sent; count the rest as dropped."""
        until = time.monotonic() + seconds
        for channel in self._channels:
            channel.queue.close()
        for channel in self._channels:
            channel.thread.join(max(0.0, until - time.monotonic()))
            channel.queue.drop_all()


class _Service(NamedTuple):
    apprise: Apprise
    name: str


def _service(url: str, number: int) -> _Service:
    try:
        from apprise import Apprise, AppriseAsset
    except ImportError:
        raise InputError(f"--notify needs the package apprise: {_INSTALL}") from None
    # Its logger would print failures on standard error, with parts of the URL.
    logger = logging.getLogger("apprise")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    asset = AppriseAsset(
        app_id="mwatch", app_desc="mwatch", image_url_mask="", storage_mode="memory"
    )
    try:
        service = Apprise.instantiate(url.strip(), asset=asset, suppress_exceptions=True)
    except Exception:  # a plugin's parser may raise anything
        service = None
    if service is None:
        raise InputError(
            f"--notify: URL {number} is not an address that apprise knows, such as "
            "slack://TOKEN_A/TOKEN_B/TOKEN_C (the URL is not shown: it may contain a secret)"
        )
    # With its default pause of 5.5 s, the message about the end of a run would be lost.
    service.request_rate_per_sec = min(service.request_rate_per_sec, _PAUSE_SECONDS)
    apprise = Apprise(asset=asset)
    apprise.add(service)
    return _Service(apprise, f"{service.service_name}, URL {number}")


class _Channel:
    """One URL: a queue, the thread that empties it, and the counts."""

    def __init__(self, service: _Service, limits: NotifyLimits) -> None:
        self._service = service
        self._seconds = limits.message_seconds
        self._pending: threading.Thread | None = None
        """The message in flight. There is at most one: the next message waits for it."""
        self.queue: DropQueue[Message] = DropQueue(limits.max_queued)
        self.sent = 0
        self.failed = 0
        self.problem: str | None = None
        self.thread = threading.Thread(target=self._run, name="mwatch-notify", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (first := self.queue.take()) is not None:
            waiting = [first, *self.queue.take_rest()]
            problem = self._deliver(together(waiting))
            if problem is None:
                self.sent += len(waiting)
                continue
            self.failed += len(waiting)
            self.problem = self.problem or (
                f"notification not sent ({self._service.name}): {problem}; "
                "check the URL with: apprise -vv -b test URL"
            )

    def _deliver(self, message: Message) -> str | None:
        """Send a message within the time limit; return why it failed, or None on success."""
        until = time.monotonic() + self._seconds
        late = f"no answer within {self._seconds:g} s"
        if self._pending is not None:
            self._pending.join(self._seconds)
            if self._pending.is_alive():
                return late
        answers: list[bool] = []
        self._pending = threading.Thread(
            target=self._notify, args=(message, answers), name="mwatch-notify-send", daemon=True
        )
        self._pending.start()
        self._pending.join(max(0.0, until - time.monotonic()))
        if not answers:
            return late if self._pending.is_alive() else "the plugin of apprise failed"
        return None if answers[0] else "the service is unreachable or refused the message"

    def _notify(self, message: Message, answers: list[bool]) -> None:
        words: dict[str, Any] = {"body_format": "text", "notify_type": _TYPES[message.level]}
        try:
            done = self._service.apprise.notify(body=message.body, title=message.title, **words)
        except Exception:  # any of its many plugins may raise; the text may contain the URL
            return
        answers.append(bool(done))
