# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The vocabulary that every stage shares; imports nothing else of ours and does no I/O."""
