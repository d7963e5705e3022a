# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What torch's flight-recorder dumps say about which rank waits for which; pure."""
