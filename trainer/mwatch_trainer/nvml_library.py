# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The library itself: a call by its name, and what its answer means.

A driver that lacks a call answers as one that does not support it. A driver that is wedged can
make any call hang: call from a thread that nobody waits for.
"""

from __future__ import annotations

import ctypes
from typing import Any

from mwatch_trainer.nvml_contract import FUNCTION_NOT_FOUND, NOTHING_THERE, SUCCESS, Absent, Broken
from mwatch_trainer.nvml_contract import check as checked

LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96


class Library:
    """Raises Absent where there is none, Broken where it does not start."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library: Any = ctypes.CDLL(library)
        except OSError:
            raise Absent(f"{library} is not there") from None
        code = self.call("nvmlInit_v2")
        if code in NOTHING_THERE:
            raise Absent(f"NVML does not start: {self.said(code)}")
        if code != SUCCESS:
            raise Broken(f"NVML does not start: {self.said(code)}")

    def call(self, name: str, *arguments: Any) -> int:
        function = getattr(self._library, name, None)
        return int(function(*arguments)) if function is not None else FUNCTION_NOT_FOUND

    def fill(self, name: str, *arguments: Any) -> bool:
        """Whether what the arguments point to was filled. Raises Lost, Broken, Unclear."""
        return checked(self.call(name, *arguments), self.said)

    def number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int | None:
        value = kind()
        return int(value.value) if self.fill(name, *arguments, ctypes.byref(value)) else None

    def text(self, name: str, *arguments: Any) -> str | None:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        if not self.fill(name, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES)):
            return None
        return buffer.value.decode("utf-8", "replace")

    def said(self, code: int) -> str:
        function = getattr(self._library, "nvmlErrorString", None)
        if function is None:
            return f"error {code}"
        function.restype = ctypes.c_char_p
        return (function(ctypes.c_int(code)) or b"").decode("utf-8", "replace") or f"error {code}"
