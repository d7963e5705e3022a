# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What several commands share: options, help, JSON output, the terminal, the way to a cluster."""
