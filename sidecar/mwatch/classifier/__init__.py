# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Text classifier trained on public failure logs, for logs that no rule explains."""
