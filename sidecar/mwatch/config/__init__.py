# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""User configuration, loaded and validated: policy, fleet, sidecar and controller settings, and
the fault catalogue.
"""
