# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The addresses of the cluster, of the ranges for documentation: no packet can go astray."""

from __future__ import annotations

NODE = "198.51.100.1"
PODS = "198.51.100.0/24"
FIRST_POD = "198.51.100.10"
SERVICES = "203.0.113.0/24"
BRIDGE = "mw0"
API = f"https://{NODE}:6443"
