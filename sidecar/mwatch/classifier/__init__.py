# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a log reads like, learnt from public failure logs: for logs that no rule explains."""
