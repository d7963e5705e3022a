# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`fold(job, observed)`: what is known about a job grows by one observation; no I/O, no clock."""
