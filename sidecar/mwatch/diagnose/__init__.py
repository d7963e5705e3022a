# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Commands that only read: what is wrong with a live job, a fleet, a manifest or a save folder."""
