# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Faults on a real GPU, each under `mwatch run`: what mwatch says, after how long, and where."""
