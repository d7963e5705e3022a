# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Code shared by several commands: options, help, JSON output, terminal, cluster access."""
