# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Parse the text that trainers print into events, without file or clock access."""
