# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Failure logs of the kinds people post in public issues, and how mwatch judges them."""
