# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: the folders at the top of the repository go into the wheel, and
the README into its metadata with links that work on PyPI."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent / "sidecar"))

from mwatch import shipped

README = Path(__file__).resolve().parent / "README.md"
REPOSITORY = "https://github.com/mwatch-dev/mwatch"
RELATIVE = re.compile(r"(!?)(\[[^\]]*\]\()(?![a-z]+:|#)")


class BuildWithShippedFiles(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # that reads them where they lie
            shipped.copy_into(Path(self.build_lib, "mwatch", "shipped"))


def absolute(link: re.Match[str]) -> str:
    """A relative link, on GitHub: a picture as a file, all else as a page."""
    is_picture, text = link.groups()
    return f"{is_picture}{text}{REPOSITORY}/{'raw' if is_picture else 'blob'}/main/"


setup(
    cmdclass={"build_py": BuildWithShippedFiles},
    long_description=RELATIVE.sub(absolute, README.read_text("utf-8")),
    long_description_content_type="text/markdown",
)
