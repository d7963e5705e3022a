# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Findings and actions as text notes in TensorBoard event files."""
