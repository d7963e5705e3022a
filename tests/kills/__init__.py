# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of mwatch killed at random moments: a few rounds of `benchmarks.kills`."""
