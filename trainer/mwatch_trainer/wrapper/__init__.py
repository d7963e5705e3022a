# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One run of `mwatch-run`: start the trainer, supervise it, report its end."""
