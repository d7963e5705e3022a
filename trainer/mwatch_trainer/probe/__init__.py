# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The thread inside each rank. Imports nothing but this package and `contract`."""
