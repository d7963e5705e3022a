# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Process plumbing that is independent of training: clock, shutdown, fan-out, files, HTTP."""
