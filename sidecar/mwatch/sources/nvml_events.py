# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Xids and the other events of GPUs, by `nvidia-ml-py`. As `mwatch_trainer.nvml_events`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from mwatch_trainer.nvml_contract import (
    EVENT_MASK,
    EVENT_XID,
    TIMEOUT,
    WAIT_MILLISECONDS,
    Lost,
    Tell,
    event_name,
)


def watch(
    module: Any,
    ask: Callable[..., Any],
    devices: list[Any],
    tell: Tell,
    is_over: Callable[[], bool],
) -> None:
    """Tells each as it comes; returns when it is over, or cannot be watched (any more)."""
    events = ask("nvmlEventSetCreate")
    if events is None:
        return
    try:
        watched = _register(module, devices, events)
        while watched and not is_over():
            try:
                event = module.nvmlEventSetWait_v2(events, WAIT_MILLISECONDS)
            except module.NVMLError as error:
                if error.value != TIMEOUT:
                    return
                continue
            name = event_name(event.eventType)
            if name is not None:
                tell(watched.get(_address(event.device), -1), name, int(event.eventData))
    finally:
        ask("nvmlEventSetFree", events)


def _register(module: Any, devices: list[Any], events: Any) -> dict[int | None, int]:
    watched: dict[int | None, int] = {}
    for index, device in enumerate(devices):
        if device is None or isinstance(device, Lost):
            continue
        try:
            mask = module.nvmlDeviceGetSupportedEventTypes(device) & EVENT_MASK
        except module.NVMLError:
            mask = EVENT_XID
        try:
            if mask:
                module.nvmlDeviceRegisterEvents(device, mask, events)
                watched[_address(device)] = index
        except module.NVMLError:
            continue
    return watched


def _address(device: Any) -> int | None:
    return ctypes.cast(device, ctypes.c_void_p).value
