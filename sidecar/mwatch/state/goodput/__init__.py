# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The goodput ledger: every second of wall time booked into one category."""
