# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Recognisers, one module for each kind of text that trainers and launchers print."""
