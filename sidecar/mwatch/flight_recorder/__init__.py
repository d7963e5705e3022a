# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Compare the flight recordings of all ranks: which rank waits for which."""
