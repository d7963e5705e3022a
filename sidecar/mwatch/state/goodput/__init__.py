# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The goodput ledger, which books every second of wall time into one category."""
