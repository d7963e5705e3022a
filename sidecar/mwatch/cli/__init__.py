# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per command, with heavy imports inside the functions."""
