# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`--bundle FILE.tgz`: all that was seen of a job in one file, for a ticket or another person.

Manifests, pods, events, ends of the logs, snapshots, verdict. Secrets are taken out of every text;
values of variables whose names sound like secrets are, too. Bounded, written whole or not at all,
and readable by its owner only.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mwatch.app.diagnose_job_report import JobReport
from mwatch.app.report_text import json_text
from mwatch.errors import InputError
from mwatch_trainer.scrub import scrub_text
from mwatch_trainer.scrub_environment import is_secret_name

MAX_BYTES = 64 * 1024 * 1024
"""Before it is packed; logs come last and are left out first."""
_LOG_BYTES = 512 * 1024


def check_target(file: Path) -> None:
    """Before anything is asked: InputError where it could not be written."""
    if file.is_dir():
        raise InputError(f"{file}: is a folder; name a file in it")
    if not file.parent.is_dir():
        raise InputError(f"{file}: there is no folder {file.parent}; make it first")


def write_bundle(report: JobReport, file: Path) -> str:
    """What is in it, in a few words. InputError where it cannot be written."""
    check_target(file)
    name = f"{report.facts.job.namespace}-{report.facts.job.name}"
    try:
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as out:  # mkstemp makes it 0600
                told = _write(report, out, name)
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror}); check it") from error
    return told


def _write(report: JobReport, out: Any, name: str) -> str:
    left, files, left_out = MAX_BYTES, 0, 0
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path, text in _contents(report):
            data = scrub_text(text).encode("utf-8", "backslashreplace")
            if len(data) > left:
                left_out += 1
                continue
            left -= len(data)
            files += 1
            info = tarfile.TarInfo(f"{name}/{path}")
            info.size, info.mode, info.mtime = len(data), 0o600, int(report.facts.kube.now)
            archive.addfile(info, io.BytesIO(data))
    more = f", {left_out} left out for their size" if left_out else ""
    return f"{files} files{more}"


def _contents(report: JobReport) -> Iterator[tuple[str, str]]:
    facts = report.facts
    yield "verdict.json", json_text(report.to_json())
    yield "job.json", _json(facts.found.body)
    yield "pods.json", _json(list(facts.bodies.values()))
    yield "events.json", _json(list(facts.events))
    for other in facts.others:
        yield f"objects/{other.kind}-{other.name}.json", _json(other.content)
    for words in report.words:
        if words.raw:
            yield f"snapshots/{words.pod.name}.json", _json(words.raw)
    for words in report.words:
        for log in words.logs:
            end = ".previous" if log.is_previous else ""
            data = (log.head[-_LOG_BYTES:] + log.tail[-_LOG_BYTES:]).decode("utf-8", "replace")
            yield f"logs/{log.pod}.{log.container}{end}.log", data


def _json(body: Any) -> str:
    return json.dumps(_masked(body), indent=2, ensure_ascii=False, default=str)


_SECRET_WORDS = (
    "TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL", "CREDENTIALS",
)  # fmt: skip
_NOT_SECRET = ("KEYS_PATH", "KEY_FILE")
_REMOVED = "[removed]"


def _masked(value: Any) -> Any:
    """A variable of a container is `name` and `value`, and a flag and its value are two words: no
    scrubber of texts sees them as one."""
    if isinstance(value, dict):
        return _masked_object(value)
    if isinstance(value, list | tuple):
        return [
            _REMOVED if isinstance(each, str) and index and _is_flag(value[index - 1]) else
            _masked(each)
            for index, each in enumerate(value)
        ]  # fmt: skip
    return _masked_text(value) if isinstance(value, str) else value


def _masked_object(value: dict[str, Any]) -> dict[str, Any]:
    if isinstance(value.get("value"), str) and _is_secret(str(value.get("name", ""))):
        return {**value, "value": _REMOVED}
    return {
        key: _REMOVED if isinstance(each, str) and key.isupper() and _is_secret(key) else
        _masked(each)
        for key, each in value.items()
        if key != "managedFields"
    }  # fmt: skip


def _masked_text(text: str) -> str:
    """An annotation may hold the whole manifest once more, as JSON."""
    if not text.startswith("{"):
        return text
    try:
        return json.dumps(_masked(json.loads(text)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _is_flag(word: Any) -> bool:
    return isinstance(word, str) and word.startswith("--") and "=" not in word and _is_secret(word)


def _is_secret(name: str) -> bool:
    """What the evidence of a pod leaves out, and more, for a bundle goes to others: any word of the
    name counts, not the last alone. A TOKENIZER is none, and neither are max-tokens."""
    name = name.lstrip("-").upper().replace("-", "_")
    has_word = any(each.endswith(_SECRET_WORDS) for each in name.split("_"))
    return name not in _NOT_SECRET and (has_word or is_secret_name(name))
