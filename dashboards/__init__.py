# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboards, defined in Python; `python -m dashboards` writes the JSON files."""
