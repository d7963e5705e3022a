# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch inject` and `uninject`: read a manifest, change it, and report notes and findings.

The API server shows which form of the sidecar its cluster keeps; without one the native form is
chosen, and a note says so.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mwatch.checks.every import look
from mwatch.errors import InputError, MwatchError
from mwatch.manifests.parts import InjectRequest as InjectRequest  # the commands make one
from mwatch.manifests.parts import Sidecar
from mwatch.manifests.stream import plain
from mwatch.manifests.whole import ManifestResult, inject_text, uninject_text, workloads
from mwatch.model.checks import Problem, Workload
from mwatch.runtime.files import replace_file

STDIN = "-"
_STDIN_NAME = "<stdin>"
MAX_BYTES = 4_000_000
Form = Literal["auto", "native", "container"]
Keeps = Callable[[str], bool | None]
"""Whether the cluster keeps a native sidecar in this kind of job; None: not known."""


@dataclass(frozen=True, slots=True)
class Changed:
    file: str
    before: str
    after: str
    result: ManifestResult
    found: tuple[Problem, ...] = ()
    """By the checks, in the manifest as given."""

    def diff(self) -> list[str]:
        before, after = self.before.splitlines(), self.after.splitlines()
        names = self.file, f"{self.file} (changed)"
        return list(difflib.unified_diff(before, after, *names, lineterm=""))

    def as_json(self) -> dict[str, object]:
        return {
            "file": self.file,
            "jobs": list(self.result.jobs),
            "notes": list(self.result.notes),
            "said": list(self.result.notes),  # the old key of `notes`, removed in 0.3
            "findings": [found_json(each) for each in self.found],
            "objects": [plain(each) for each in self.result.objects],
        }


def inject(file: str, request: InjectRequest, form: Form, keeps: Keeps | None = None) -> Changed:
    name, text = read(file)
    jobs = workloads(text, name, request.container)
    sidecar, notes = choose(form, dict.fromkeys(each.kind for each in jobs), keeps)
    result = inject_text(text, name, request._replace(sidecar=sidecar))
    result = result._replace(notes=(*notes, *result.notes))
    after = workloads(result.text, name, request.container)
    return Changed(name, text, result.text, result, tuple(_still_found(jobs, after)))


def _still_found(before: Iterable[Workload], after: Iterable[Workload]) -> Iterator[Problem]:
    """The problems after the change, with their lines in the given file."""
    lines = {(one.check, one.job, one.what): one.line for each in before for one in look(each)}
    for one in (one for each in after for one in look(each)):
        yield one._replace(line=lines.get((one.check, one.job, one.what)))


def uninject(file: str, only: tuple[str, ...] = ()) -> Changed:
    name, text = read(file)
    result = uninject_text(text, name, only)
    return Changed(name, text, result.text, result)


def choose(form: Form, kinds: Iterable[str], keeps: Keeps | None) -> tuple[Sidecar, list[str]]:
    if form != "auto":
        return form, []
    native = "the sidecar is a native one (Kubernetes 1.29, operator 1.8 and newer)"
    if keeps is None:
        return "native", [f"no cluster was asked: {native}; else use --sidecar container"]
    notes: list[str] = []
    for kind in kinds:
        try:
            kept = keeps(kind)
        except MwatchError as error:
            return "native", [f"the cluster could not be asked ({error}): {native}"]
        if kept is False:
            why = f"this cluster drops native sidecars of a {kind}"
            return "container", [f"{why}, so the sidecar is a plain container"]
        if kept is None:
            notes.append(f"cannot find out whether the cluster keeps a native sidecar in a {kind}")
    return "native", notes


def cluster_keeps(
    kubeconfig: str | None, context: str | None, namespace: str | None
) -> Keeps | None:
    """None: no cluster is configured. InputError if one was named and cannot be used."""
    from mwatch.kube.access import Access
    from mwatch.kube.connect import connect
    from mwatch.kube.native_sidecars import keeps_native

    try:
        access = Access(connect(kubeconfig, context))
    except MwatchError as error:
        if kubeconfig or context:
            raise InputError(str(error)) from None
        return None
    where = namespace or access.namespace
    return lambda kind: keeps_native(access, where, kind)


def read(file: str) -> tuple[str, str]:
    """The name for messages, and the text. InputError if it cannot be read."""
    name = _STDIN_NAME if file == STDIN else file
    try:
        if file == STDIN:
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(file, "rb") as source:
                data = source.read(MAX_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{name}: is too large for a manifest (over {MAX_BYTES} bytes)")
    return name, text.removeprefix("\ufeff")


def write(file: Path, text: str) -> None:
    try:
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o644
        replace_file(file, text.encode(), mode=mode)
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror})") from None


def found_json(found: Problem) -> dict[str, object]:
    return {
        "check": found.check,
        "level": found.level.value,
        "job": found.job,
        "line": found.line,
        "seen": found.what,
        "fix": found.fix,
        "mend": found.fix,  # deprecated, until 0.3
    }
