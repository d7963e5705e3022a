# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which attempt this is and which checkpoint it starts from, agreed by all nodes."""
