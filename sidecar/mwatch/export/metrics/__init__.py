# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The table of metrics, the values measured for it, and the Prometheus text format."""
