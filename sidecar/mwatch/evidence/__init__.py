# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One incident's bundle: collect it, store it, bring it off the pod."""
