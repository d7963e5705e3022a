# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Puts the folders at the top of the repository into the wheel; all else is in pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent / "sidecar"))

from mwatch import shipped


class BuildWithShippedFiles(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # that reads them where they lie
            shipped.copy_into(Path(self.build_lib, "mwatch", "shipped"))


setup(cmdclass={"build_py": BuildWithShippedFiles})
