# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A whole file: which objects in it are jobs, and what becomes of each.

A PyTorchJob, JobSet or TrainJob trains. A Job or StatefulSet is often something else (data
preparation, a store): beside others it is taken only where it looks like training, or by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mwatch.errors import InputError
from mwatch.manifests import kinds
from mwatch.manifests.facts import workload_of
from mwatch.manifests.inject import Content, Job, inject, refusal_at, remove, trains
from mwatch.manifests.parts import Wish
from mwatch.manifests.stream import Document, new_document, read
from mwatch.manifests.trainjob import inject_trainjob
from mwatch.manifests.unrendered import unrendered
from mwatch.model.workload import Path, Reached, Workload

_ALWAYS = (kinds.PYTORCHJOB, kinds.JOBSET, kinds.TRAINJOB)


class Result(NamedTuple):
    text: str
    objects: tuple[Content, ...]
    jobs: tuple[str, ...]
    """Those that were changed: `PyTorchJob/gpt`."""
    said: tuple[str, ...]
    """What the user should know."""


class Object(NamedTuple):
    document: Document
    path: Path
    """Inside the document: items of a List have one."""
    content: Content

    @property
    def kind(self) -> str:
        return str(self.content.get("kind"))

    @property
    def name(self) -> str:
        metadata = self.content.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        return str(metadata.get("name") or metadata.get("generateName") or "")

    @property
    def title(self) -> str:
        return f"{self.kind}/{self.name}"


def inject_text(text: str, file: str, wish: Wish) -> Result:
    """InputError, with file and line, where it cannot be done."""
    documents = read(text, file)
    objects = list(_objects(documents))
    chosen, said = _chosen(objects, file, wish.only)
    runtimes = [each for each in objects if kinds.kind_of(each.content) in kinds.RUNTIMES]
    for each in chosen:
        job = _job(each, objects)
        if each.kind == kinds.TRAINJOB:
            done = inject_trainjob(job, [_job(one, objects) for one in runtimes], wish)
            _drop_runtime(documents, done.runtime)
            if done.runtime is not None:
                documents.append(new_document(done.runtime, file))
            for one in runtimes:
                one.document.is_changed |= one.name == kinds.at(
                    each.content, ("spec", "runtimeRef", "name")
                )
            said += [f"{each.title}: {words}" for words in done.said]
        else:
            said += [f"{each.title}: {words}" for words in inject(job, wish)]
        each.document.is_changed = True
    return _result(documents, [each.title for each in chosen], said)


def uninject_text(text: str, file: str, only: Sequence[str] = ()) -> Result:
    """What inject wrote, without it; nothing of ours in it is no error, but is said."""
    documents = read(text, file)
    objects = list(_objects(documents))
    changed: list[str] = []
    for each in objects:
        if only and each.name not in only:
            continue
        reference = kinds.at(each.content, ("spec", "runtimeRef", "name"))
        if kinds.kind_of(each.content) and remove(_job(each, objects)):
            each.document.is_changed = True
            changed.append(each.title)
        if kinds.at(each.content, ("spec", "runtimeRef", "name")) != reference:
            documents = [one for one in documents if _runtime_name(one) != reference]
    said = [] if changed else ["there is nothing of mwatch in it"]
    return _result(documents, changed, said)


def workloads(text: str, file: str, container: str | None = None) -> list[Workload]:
    """The jobs of a file, for the checks. InputError where it cannot be read."""
    documents = read(text, file)
    objects = list(_objects(documents))
    found: list[Workload] = []
    for each in objects:
        lines = {
            path[len(each.path) :]: line
            for path, line in each.document.lines().items()
            if path[: len(each.path)] == each.path
        }
        others = _others(each, objects)
        seen = workload_of(each.content, others, lines, container)
        if seen is not None and (seen.kind in _ALWAYS or _trains(each)):
            for path, words in unrendered(each.content):
                raise each.document.refusal((*each.path, *path), words)
            found.append(seen)
    return found


def _objects(documents: Sequence[Document]) -> Iterator[Object]:
    for document in documents:
        content = document.content
        if not isinstance(content, Mapping):
            continue
        items = content.get("items")
        if content.get("kind") == "List" and isinstance(items, Sequence):
            for index, each in enumerate(items):
                if isinstance(each, Mapping):
                    yield Object(document, ("items", index), each)  # type: ignore[arg-type]
        else:
            yield Object(document, (), content)  # type: ignore[arg-type]


def _chosen(
    objects: Sequence[Object], file: str, only: Sequence[str]
) -> tuple[list[Object], list[str]]:
    jobs = [each for each in objects if kinds.kind_of(each.content) in kinds.JOBS]
    if only:
        missing = [name for name in only if name not in {each.name for each in jobs}]
        if missing:
            known = ", ".join(each.name for each in jobs) or "none"
            raise InputError(f"{file}: no job is called {missing[0]} (there are: {known})")
        return [each for each in jobs if each.name in only], []
    if not jobs:
        raise _no_job(objects, file)
    sure = [each for each in jobs if each.kind in _ALWAYS or _trains(each)]
    if not sure and len(jobs) == 1:
        sure = jobs
    if not sure:
        names = ", ".join(each.title for each in jobs)
        raise InputError(f"{file}: none of {names} looks like training; name one by --only")
    left = [each for each in jobs if each not in sure]
    words = "left as it is: it does not look like training (else name it by --only)"
    return sure, [f"{each.title}: {words}" for each in left]


def _no_job(objects: Sequence[Object], file: str) -> InputError:
    known = ", ".join(kinds.JOBS)
    if not objects:
        return InputError(f"{file}:1: there is no object in it; give the manifest of a {known}")
    first = objects[0]
    line = first.document.lines().get((*first.path, "kind"), first.document.first_line)
    found = ", ".join(dict.fromkeys(each.kind for each in objects))
    return InputError(f"{file}:{line}: has no job that mwatch knows (found: {found}); use {known}")


def _trains(each: Object) -> bool:
    return any(trains(template) for template in kinds.templates(each.content))


def _job(each: Object, objects: Sequence[Object]) -> Job:
    refuse = refusal_at(each.document.refusal, each.path)
    return Job(each.content, refuse, _others(each, objects))


def _others(each: Object, objects: Sequence[Object]) -> tuple[Reached, ...]:
    return tuple(
        Reached(one.kind, one.name, one.content, one.document.first_line)
        for one in objects
        if one is not each
    )


def _drop_runtime(documents: list[Document], runtime: Content | None) -> None:
    """One that an earlier inject wrote: it is written anew."""
    name = kinds.at(runtime, ("metadata", "name"))
    documents[:] = [each for each in documents if runtime is None or _runtime_name(each) != name]


def _runtime_name(document: Document) -> str | None:
    if kinds.kind_of(document.content) not in kinds.RUNTIMES:
        return None
    return str(kinds.at(document.content, ("metadata", "name")))


def _result(documents: Sequence[Document], jobs: Sequence[str], said: Sequence[str]) -> Result:
    parts: list[str] = []
    for each in documents:
        if parts and not parts[-1].endswith("\n"):
            parts.append("\n")
        parts.append(each.text())
    objects = tuple(each.content for each in documents if isinstance(each.content, Mapping))
    return Result("".join(parts), objects, tuple(jobs), tuple(said))  # type: ignore[arg-type]
