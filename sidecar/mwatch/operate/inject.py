# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch inject` and `uninject`: read a manifest, change it, and report notes and findings.

By default the sidecar is a plain container: a native one would block the whole pod while its image
cannot be pulled. If a cluster can be reached, it is asked which image its controller has, whether
the wrapper is installed, and, for a native sidecar, whether the kind of job keeps it.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mwatch import __version__
from mwatch.checks.every import look
from mwatch.errors import InputError, MwatchError
from mwatch.manifests.image_reference import parse
from mwatch.manifests.parts import WRAPPER, Sidecar
from mwatch.manifests.parts import InjectRequest as InjectRequest  # re-exported for the commands
from mwatch.manifests.plain_data import plain
from mwatch.manifests.whole import ManifestResult, inject_text, uninject_text, workloads
from mwatch.model.checks import Problem, Workload
from mwatch.runtime.files import replace_file

if TYPE_CHECKING:
    from mwatch.kube.installed import Installed

STDIN = "-"
_STDIN_NAME = "<stdin>"
MAX_BYTES = 4_000_000
Keeps = Callable[[str], bool | None]
"""Whether the cluster keeps a native sidecar in this kind of job; None: not known."""


@dataclass(frozen=True, slots=True)
class Changed:
    file: str
    before: str
    after: str
    result: ManifestResult
    found: tuple[Problem, ...] = ()
    """Problems that the checks still find after the change, with lines in the given manifest."""

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


def inject(file: str, request: InjectRequest, cluster: Installed | None = None) -> Changed:
    """Inject into a manifest. A request without an image gets that of the cluster's controller."""
    name, text = read(file)
    jobs = workloads(text, name, request.container)
    if not request.image:
        request, notes = with_image(request, cluster)
    else:
        notes = parse(request.image).warnings()
    keeps = None if cluster is None else cluster.keeps_native
    sidecar, more = choose(request.sidecar, dict.fromkeys(each.kind for each in jobs), keeps)
    notes += [*more, *_without_wrapper(request, cluster)]
    result = inject_text(text, name, request._replace(sidecar=sidecar))
    result = result._replace(notes=(*notes, *result.notes))
    after = workloads(result.text, name, request.container)
    return Changed(name, text, result.text, result, tuple(_still_found(jobs, after)))


def with_image(
    request: InjectRequest, cluster: Installed | None
) -> tuple[InjectRequest, list[str]]:
    try:
        found = None if cluster is None else cluster.image()
    except MwatchError as error:
        found, notes = None, [f"the cluster could not be asked for mwatch's image ({error})"]
    else:
        notes = []
    image = found or f"mwatch:{__version__}"
    warnings = [] if found else parse(image).warnings()  # nodes can pull the controller's image
    fix = ["name one that they can pull with --image"] if warnings else []
    return request._replace(image=image), [*notes, *warnings, *fix]


def _without_wrapper(request: InjectRequest, cluster: Installed | None) -> list[str]:
    if cluster is None or request.wrapper != "configmap":
        return []
    try:
        if cluster.has_configmap(WRAPPER):
            return []
    except MwatchError as error:
        return [f"cannot find out whether there is a ConfigMap {WRAPPER} ({error})"]
    return [
        f"the namespace {cluster.namespace} has no ConfigMap {WRAPPER}, so the trainer would run "
        "unwatched; install the chart mwatch there: mwatch export charts DIR"
    ]


def _still_found(before: Iterable[Workload], after: Iterable[Workload]) -> Iterator[Problem]:
    """The problems after the change, with their lines in the given file."""
    lines = {(one.check, one.job, one.what): one.line for each in before for one in look(each)}
    for one in (one for each in after for one in look(each)):
        yield one._replace(line=lines.get((one.check, one.job, one.what)))


def uninject(file: str, only: tuple[str, ...] = ()) -> Changed:
    name, text = read(file)
    result = uninject_text(text, name, only)
    return Changed(name, text, result.text, result)


def choose(form: Sidecar, kinds: Iterable[str], keeps: Keeps | None) -> tuple[Sidecar, list[str]]:
    if form == "container":
        return form, []
    notes = ["a native sidecar holds the whole pod back while its image cannot be pulled"]
    needs = "it needs Kubernetes 1.29 and operator 1.8"
    if keeps is None:
        return form, [*notes, f"no cluster was asked about native sidecars: {needs}"]
    for kind in kinds:
        try:
            kept = keeps(kind)
        except MwatchError as error:
            return form, [*notes, f"the cluster could not be asked ({error}): {needs}"]
        if kept is False:
            why = f"this cluster drops native sidecars of a {kind}"
            return "container", [f"{why}, so the sidecar is a plain container"]
        if kept is None:
            notes.append(f"cannot find out whether the cluster keeps a native sidecar in a {kind}")
    return form, notes


def installed(
    kubeconfig: str | None, context: str | None, namespace: str | None
) -> Installed | None:
    """None: no cluster is configured. InputError if one was named and cannot be used."""
    from mwatch.kube.access import Access
    from mwatch.kube.connect import connect
    from mwatch.kube.installed import Installed

    try:
        access = Access(connect(kubeconfig, context))
    except MwatchError as error:
        if kubeconfig or context:
            raise InputError(str(error)) from None
        return None
    return Installed(access, namespace or access.namespace)


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
