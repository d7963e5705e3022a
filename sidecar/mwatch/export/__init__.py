# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Answers, never asks: a snapshot as metrics and pages, for whoever reads them."""
