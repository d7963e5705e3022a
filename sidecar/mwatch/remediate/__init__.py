# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""From a due decision to a restarted gang: gates, restart cases, the ledger, the worker."""
