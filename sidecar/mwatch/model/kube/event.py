# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""An Event of the cluster: what somebody said about a pod or a job. Kept an hour by default."""

from __future__ import annotations

from typing import NamedTuple

from mwatch.model.kube.fields import Object, moment, number, text

_MAX_TEXT = 500


class KubeEvent(NamedTuple):
    about_kind: str
    about_name: str
    about_uid: str
    reason: str
    text: str
    is_warning: bool
    at: float | None
    """The newest time that it was seen."""
    times: int


def event_of(body: Object) -> KubeEvent:
    times = [
        moment(body, "series", "lastObservedTime"),
        moment(body, "lastTimestamp"),
        moment(body, "eventTime"),
        moment(body, "firstTimestamp"),
        moment(body, "metadata", "creationTimestamp"),
    ]
    return KubeEvent(
        about_kind=text(body, "involvedObject", "kind"),
        about_name=text(body, "involvedObject", "name"),
        about_uid=text(body, "involvedObject", "uid"),
        reason=text(body, "reason"),
        text=text(body, "message")[:_MAX_TEXT],
        is_warning=text(body, "type") == "Warning",
        at=next((each for each in times if each is not None), None),
        times=number(body, "series", "count") or number(body, "count") or 1,
    )
