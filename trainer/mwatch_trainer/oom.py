# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How often the kernel has killed a process of this container for want of memory.

A count since the container began: whoever wants to know about one child compares two readings.
It cannot tell which process was killed.
"""

from __future__ import annotations

import os
import re

_ROOT = "/sys/fs/cgroup"
_OWN = "/proc/self/cgroup"
_MAX_BYTES = 1 << 16
_COUNT = re.compile(r"(?m)^oom_kill (\d{1,18})$")


def oom_kills(root: str = _ROOT, own: str = _OWN) -> int | None:
    """None where it cannot be read: an old kernel, or no cgroup in sight."""
    for path in _places(root, own):
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                found = _COUNT.search(file.read(_MAX_BYTES))
        except OSError:
            continue
        if found:
            return int(found.group(1))
    return None


def _places(root: str, own: str) -> list[str]:
    """Of cgroup v2, then of v1; in a container the own cgroup is often the root that is seen."""
    unified, memory = "", ""
    try:
        with open(own, encoding="utf-8", errors="replace") as file:
            for line in file.read(_MAX_BYTES).splitlines():
                number, controllers, path = [*line.split(":", 2), "", ""][:3]
                if number == "0" and not controllers:
                    unified = path.lstrip("/")
                elif "memory" in controllers.split(","):
                    memory = path.lstrip("/")
    except OSError:
        pass
    return [
        os.path.join(root, unified, "memory.events"),
        os.path.join(root, "memory.events"),
        os.path.join(root, "memory", memory, "memory.oom_control"),
        os.path.join(root, "memory", "memory.oom_control"),
    ]
