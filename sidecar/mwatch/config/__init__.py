# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a person may set: policy, fleet, sidecar and controller settings, and the fault catalogue,
loaded and checked.
"""
