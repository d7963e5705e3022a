# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The state of a job: `fold(job, observed)` updates it with one observation; no I/O, no clock."""
