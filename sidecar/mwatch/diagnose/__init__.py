# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read-only diagnosis of a live job, a fleet, a manifest or a save folder."""
