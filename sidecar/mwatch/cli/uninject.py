# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch uninject`: takes away what `mwatch inject` added.

Exit codes: 0 done, or nothing to do; 2 the manifest cannot be read.
"""

from __future__ import annotations

from mwatch.cli.manifest import AsJson, Diff, File, InPlace, Only, Out, hand_over, target


def uninject(
    file: File = "-",
    *,
    only: Only = None,
    diff: Diff = False,
    out: Out = None,
    in_place: InPlace = False,
    as_json: AsJson = False,
) -> None:
    """Take mwatch out of a manifest again. Prints it as it was before 'mwatch inject'.

    Example: mwatch uninject -f job.yaml --in-place
    """
    place = target(file, out, in_place)
    from mwatch.app import inject as app

    hand_over(app.uninject(file, tuple(only or ())), place, diff=diff, as_json=as_json)
