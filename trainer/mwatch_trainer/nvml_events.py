# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Xids and the other events of GPUs, as the driver gives them out.

Only what happens while somebody is registered is told, and without the words of the kernel log.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable

from mwatch_trainer.nvml_contract import (
    EVENT_MASK,
    EVENT_XID,
    SUCCESS,
    TIMEOUT,
    WAIT_MILLISECONDS,
    Lost,
    Tell,
    event_name,
)
from mwatch_trainer.nvml_library import Library
from mwatch_trainer.nvml_types import Event


def watch(library: Library, devices: list[Any], tell: Tell, is_over: Callable[[], bool]) -> None:
    """Tells each as it comes; returns when it is over, or cannot be watched (any more)."""
    events = ctypes.c_void_p()
    if library.call("nvmlEventSetCreate", ctypes.byref(events)) != SUCCESS:
        return
    try:
        watched = _register(library, devices, events)
        while watched and not is_over():
            event = Event()
            wait = ctypes.c_uint(WAIT_MILLISECONDS)
            code = library.call("nvmlEventSetWait_v2", events, ctypes.byref(event), wait)
            name = event_name(event.kind)
            if code == SUCCESS and name is not None:
                tell(watched.get(event.device, -1), name, int(event.data))
            elif code not in (SUCCESS, TIMEOUT):
                return
    finally:
        library.call("nvmlEventSetFree", events)


def _register(
    library: Library, devices: list[Any], events: ctypes.c_void_p
) -> dict[int | None, int]:
    watched: dict[int | None, int] = {}
    for index, device in enumerate(devices):
        if device is None or isinstance(device, Lost):
            continue
        supported = ctypes.c_ulonglong()
        name = "nvmlDeviceGetSupportedEventTypes"
        is_told = library.call(name, device, ctypes.byref(supported)) == SUCCESS
        mask = ctypes.c_ulonglong(supported.value & EVENT_MASK if is_told else EVENT_XID)
        if mask.value == 0:
            continue
        if library.call("nvmlDeviceRegisterEvents", device, mask, events) == SUCCESS:
            watched[device.value] = index
    return watched
