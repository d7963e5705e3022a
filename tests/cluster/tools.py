# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Debian's part of the cluster: etcd, containerd, runc, CNI plugins, iptables, conntrack.

They are unpacked into the user's cache, not installed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from support.debian_tree import debian_tree, libraries

_PACKAGES = (
    "containerd", "runc", "containernetworking-plugins", "etcd-server", "etcd-client", "iptables",
    "conntrack", "iproute2", "socat", "ethtool", "busybox-static", "dash",
)  # fmt: skip
_IPTABLES = [
    f"{family}{what}" for family in ("iptables", "ip6tables") for what in ("", "-save", "-restore")
]


@dataclass(frozen=True)
class Tools:
    root: Path

    @property
    def plugins(self) -> Path:
        return self.root / "usr/lib/cni"

    def environment(self, *first: Path) -> dict[str, str]:
        """`first`: folders of programs that come before all others."""
        ours = [self.root / each for each in ("links", "usr/bin", "usr/sbin", "bin", "sbin")]
        path = [*map(str, (*first, *ours)), os.environ.get("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")]
        extensions = next(self.root.glob("usr/lib/*/xtables"), None)
        found = {
            **os.environ,
            "PATH": os.pathsep.join(path),
            "LD_LIBRARY_PATH": os.pathsep.join(libraries(self.root)),
        }
        if extensions is not None:
            found["XTABLES_LIBDIR"] = str(extensions)
        return found


@cache
def tools() -> Tools:
    root = debian_tree(_PACKAGES, size="about 100 MB")
    links = root / "links"
    links.mkdir(exist_ok=True)
    for name in _IPTABLES:  # what update-alternatives would make
        if not (links / name).is_symlink():
            (links / name).symlink_to(root / "usr/sbin/xtables-nft-multi")
    return Tools(root)
