# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The pages that every watcher serves: `/metrics` and `/healthz`.

Healthy means that our own loop still turns. How the job is doing is another question, and never
a reason for anybody to restart the watcher.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from mwatch.export.http.server import Page, Pages, Request
from mwatch.export.metrics.prometheus import Exporter, Snapshots

STUCK_SECONDS = 30.0
"""The loop turns about once a second; evidence may hold it for 20."""


def standard_pages(
    snapshots: Snapshots, since_tick: Callable[[], float], exporter: Exporter | None = None
) -> Pages:
    """`since_tick`: seconds since the loop last turned. `exporter`: one that has more."""
    exporter = exporter or Exporter(snapshots)

    def metrics(request: Request) -> Page:
        scrape = exporter.scrape(request.headers.get("Accept", ""))
        return Page(scrape.body, scrape.content_type)

    def health(request: Request) -> Page:
        seconds = since_tick()
        if seconds > STUCK_SECONDS:
            words = f"the loop has not turned for {seconds:.0f} s\n"
            return Page(words.encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Page(b"ok\n")

    return {"/metrics": metrics, "/healthz": health}
