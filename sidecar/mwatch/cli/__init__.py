# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: one command per file, heavy imports inside the commands."""
