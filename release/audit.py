# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Known vulnerabilities of the packages in the image: `python -m release.audit PIP-AUDIT`.

pip-audit ends with 1 both where it found something and where it could not ask. Only the first is
a failure: a machine without the service must be able to run all the rest.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from release.image import LOCKS

_SECONDS = 600.0


class Vulnerability(NamedTuple):
    package: str
    version: str
    name: str
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        fix = f"fixed in {', '.join(self.fixed_in)}: make lock" if self.fixed_in else "no fix yet"
        return f"{self.package} {self.version}: {self.name}; {fix}"


class NotAudited(RuntimeError):
    """The service gave no answer; the message has pip-audit's last line."""


def audit(program: str, lock: Path) -> list[Vulnerability]:
    """Raises NotAudited."""
    words = [program, "--progress-spinner=off", "--format=json", "--timeout=15", "--disable-pip"]
    try:
        done = subprocess.run(
            [*words, "--require-hashes", "--requirement", str(lock)],
            capture_output=True, text=True, timeout=_SECONDS,
        )  # fmt: skip
        body = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise NotAudited(f"no answer within {_SECONDS:.0f} s") from error
    except OSError as error:
        raise NotAudited(str(error)) from error
    except ValueError as error:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise NotAudited(last[:300]) from error
    return [*_found(body)]


def _found(body: Any) -> Iterator[Vulnerability]:
    for each in body["dependencies"]:
        for one in each.get("vulns", ()):
            fixes = tuple(one.get("fix_versions", ()))
            yield Vulnerability(each["name"], each["version"], one["id"], fixes)


def main(words: Sequence[str]) -> int:
    (program,) = words
    try:
        found = [one for lock in LOCKS for one in audit(program, lock)]
    except NotAudited as error:
        print(f"mwatch: the packages of the image were not audited: {error}", file=sys.stderr)
        return 0
    for each in found:
        print(f"mwatch: {each}", file=sys.stderr)
    if not found:
        print("mwatch: no known vulnerability in the packages of the image")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
