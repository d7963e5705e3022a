# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes objects as mwatch uses them: jobs, pods, nodes, events, the restart ledger."""
