# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Process plumbing that knows nothing of training: clock, shutdown, fan-out, files."""
