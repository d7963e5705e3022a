# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions of mwatch.

MwatchError
└── InputError      unusable input from the user; the message is one line and names the fix
"""

from __future__ import annotations


class MwatchError(Exception):
    pass


class InputError(MwatchError):
    pass
