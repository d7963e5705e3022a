# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Dumps of stacks and flight recorders, and their way off the pod."""
