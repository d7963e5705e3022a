# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Exports snapshots: metrics over HTTP and OTLP, notes in TensorBoard."""
