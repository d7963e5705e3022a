# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The version of the wrapper: the same as that of mwatch, which a test compares."""

VERSION = "0.1.0"
