# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One screen about a manifest: what is wrong with it before it is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mwatch.cli.manifest import finding_lines

if TYPE_CHECKING:
    from mwatch.app.manifest_checks import Checked
    from mwatch.cli.terminal import Line


def render(checked: Checked) -> list[Line]:
    jobs = ", ".join(checked.jobs)
    lines: list[Line] = [[(jobs, "bold"), (f"  {checked.file}, {checked.checks} checks", "dim")]]
    if not checked.found:
        return [*lines, [("nothing found", "green")]]
    for each in checked.found:
        lines += finding_lines(each, checked.file)
    return lines
