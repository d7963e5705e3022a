# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence of an incident: dumps of stacks and flight recorders, copied off the pod."""
