# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions of mwatch.

MwatchError
└── InputError      what a person gave cannot be used; the text is one line and names the fix
"""

from __future__ import annotations


class MwatchError(Exception):
    pass


class InputError(MwatchError):
    pass
