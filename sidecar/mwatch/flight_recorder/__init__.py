# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Compare the flight-recorder dumps of all ranks to find which rank waits for which."""
