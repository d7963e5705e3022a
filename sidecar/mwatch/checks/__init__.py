# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a job before it starts; each looks at a `Workload` and reads nothing else."""
