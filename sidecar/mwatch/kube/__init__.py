# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Thin adapters to the Kubernetes API: the only code that calls it. Never used in the sidecar."""
