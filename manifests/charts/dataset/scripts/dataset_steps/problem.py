# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, and whether to try again."""

from __future__ import annotations


class Problem(Exception):
    """For the user, in one sentence. A new pod may do better."""

    code = 1


class Settled(Problem):
    """No retry will help: a wrong value, a missing right, a file that is not there."""

    code = 2
