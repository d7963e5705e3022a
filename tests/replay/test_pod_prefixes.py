# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Logs of several pods in one text, as `kubectl logs --prefix` prints them: one after the other."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mwatch.model.cause import Cause
from mwatch.replay import pod_prefixes
from mwatch.replay.log_files import find
from mwatch.replay.pod_prefixes import split_by_pod
from mwatch.replay.replay import ReplayRequest, replay
from mwatch.report.run_report import RunReport
from support.runs.commands import mwatch
from support.runs.recorded import RunLog, moment
from support.waiting import PATIENCE

OOM = """\
Traceback (most recent call last):
  File "/opt/train/pretrain.py", line 71, in step
    y = layer(x)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
OOM_LINE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def prefixed(pod: str, text: object, container: str = "pytorch") -> str:
    return "".join(f"[pod/{pod}/{container}] {line}\n" for line in str(text).splitlines())


def steps() -> str:
    return str(RunLog(total=400).start().steps(1, 50))


def died(rank: int) -> str:
    start = str(RunLog(total=400).start())
    return start + "".join(f"[rank{rank}]: {line}\n" for line in OOM.splitlines())


def judged(*files: Path) -> RunReport:
    return replay(ReplayRequest([str(file) for file in files], [], None), moment(30 * 86400.0))


def put(folder: Path, text: str, name: str = "all.log") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def piped(text: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "mwatch", "diagnose", "-", "--json"]
    answer = subprocess.run(command, input=text, text=True, capture_output=True, timeout=PATIENCE)
    body: dict[str, Any] = json.loads(answer.stdout)
    return body


def test_the_pod_of_the_culprit_is_the_one_that_kubectl_names(tmp_path: Path) -> None:
    text = prefixed("gpt-worker-1", steps()) + prefixed("gpt-worker-0", died(3))
    report = judged(put(tmp_path, text))
    assert report.verdict.cause is Cause.OOM
    assert report.verdict.culprit is not None
    assert (report.verdict.culprit.rank, report.verdict.culprit.pod) == (3, "gpt-worker-0")
    assert report.files == (str(tmp_path / "all.log"),)


def test_evidence_names_the_line_of_the_log_that_was_given(tmp_path: Path) -> None:
    text = prefixed("gpt-worker-1", steps()) + prefixed("gpt-worker-0", died(3))
    file = put(tmp_path, text)
    evidence = [each for found in judged(file).findings for each in found.evidence]
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines, 1) if OOM_LINE in line)
    assert (str(file), at) in {(each.file, each.line) for each in evidence}


def test_the_page_shows_the_last_lines_of_each_pod(tmp_path: Path) -> None:
    text = prefixed("gpt-worker-1", steps()) + prefixed("gpt-worker-0", died(3))
    request = ReplayRequest([str(put(tmp_path, text))], [], None)
    ends = replay(request, moment(30 * 86400.0), has_curves=True).log_ends
    assert {"gpt-worker-0.log", "gpt-worker-1.log"} == {each.file for each in ends}


def test_the_clock_that_goes_back_at_the_next_pod_is_no_second_attempt(tmp_path: Path) -> None:
    run = RunLog(total=50).start().steps(1, 50).done()
    other = "\n".join(line for line in str(run).splitlines() if "iteration" not in line)
    report = judged(put(tmp_path, prefixed("b-1", run) + prefixed("b-0", other)))
    assert report.verdict.cause is Cause.FINISHED
    assert len(report.attempts) == 1


FULL = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/opt/train/save.py", line 12, in save
[rank3]: OSError: [Errno 28] No space left on device: '/mnt/ckpt/iter_0000050/shard.pt'
"""
ABORTED = """\
E0107 {time} 71 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: -6) \
local_rank: 0 (pid: 114) of binary: /usr/bin/python3
"""


def full_disk() -> str:
    """The pod whose disk is full comes first; the one that it took with it comes last."""
    run = RunLog(total=400).start().steps(1, 50)
    return prefixed("gpt-master-0", f"{RunLog(total=400).start()}{FULL}") + prefixed(
        "gpt-worker-0", f"{run}{ABORTED.format(time=run.stamp[11:])}"
    )


def as_file(folder: Path, text: str) -> str:
    return str(put(folder, text))


def as_folder(folder: Path, text: str) -> str:
    put(folder, text)
    return str(folder)


def beside_another_log(folder: Path, text: str) -> str:
    put(folder, "fetching the logs of 2 pods\n", "fetch.log")
    return as_folder(folder, text)


def as_archive(folder: Path, text: str) -> str:
    archive = folder / "logs.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(put(folder, text), "logs/all.log")
    return str(archive)


def as_utf16(folder: Path, text: str) -> str:
    file = folder / "all.log"
    file.write_bytes(text.replace("\n", "\r\n").encode("utf-16"))
    return str(file)


def packed_in_a_folder(folder: Path, text: str) -> str:
    (folder / "all.log.gz").write_bytes(gzip.compress(text.encode()))
    return str(folder)


WAYS = [as_file, as_folder, beside_another_log, as_archive, as_utf16, packed_in_a_folder]


@pytest.mark.parametrize("give", WAYS)
def test_a_log_of_several_pods_is_sorted_however_it_is_given(
    tmp_path: Path, give: Callable[[Path, str], str]
) -> None:
    report = judged(Path(give(tmp_path, full_disk())))
    assert report.verdict.cause is Cause.STORAGE
    assert (report.lines or 0) >= len(full_disk().splitlines())
    lines = full_disk().splitlines()
    at = next(number for number, line in enumerate(lines, 1) if "No space left" in line)
    evidence = [each for found in report.findings for each in found.evidence]
    assert at in {each.line for each in evidence if "all.log" in (each.file or "")}


def test_what_else_is_in_the_folder_is_still_found(tmp_path: Path) -> None:
    (tmp_path / "ckpt" / "iter_0000020").mkdir(parents=True)
    put(tmp_path, full_disk())
    with split_by_pod([str(tmp_path)]) as logs:
        found = find(logs.names)
    assert [file.shown for file in found.files] == ["gpt-master-0.log", "gpt-worker-0.log"]
    assert (found.checkpoint_folders, found.notes) == ((str(tmp_path / "ckpt"),), ())


def test_two_such_logs_of_one_folder_are_attempts_of_the_same_pods(tmp_path: Path) -> None:
    first = RunLog(total=400).start().steps(1, 50).killed()
    second = RunLog(total=400, at=first.at + 60).start(load=40).steps(41, 80)
    full = "".join(f"[rank1]: {line}\n" for line in OOM.splitlines())
    full += ABORTED.format(time=second.stamp[11:])
    put(tmp_path, prefixed("gpt-0", first) + prefixed("gpt-1", "rank 1 is up"), "k-1.log")
    put(tmp_path, prefixed("gpt-0", second) + prefixed("gpt-1", full), "k-2.log")
    report = judged(tmp_path)
    assert report.verdict.cause is Cause.OOM
    assert report.verdict.culprit is not None
    assert report.verdict.culprit.pod == "gpt-1 (k-2.log)"
    assert len(report.attempts) == 2
    assert report.files == ("k-1.log", "k-2.log")


def test_a_damaged_archive_is_sorted_as_far_as_it_goes(tmp_path: Path) -> None:
    text = full_disk() + prefixed("gpt-worker-1", "\n".join(map(str, range(40_000))))
    file = tmp_path / "all.log.gz"
    file.write_bytes(gzip.compress(text.encode())[:-1000])
    report = judged(tmp_path)
    assert report.verdict.cause is Cause.STORAGE
    assert any("damaged" in note for note in report.notes)


def test_a_pipe_is_read_in_the_same_way() -> None:
    text = prefixed("gpt-worker-1", steps()) + prefixed("gpt-worker-0", died(3))
    culprit = piped(text)["verdict"]["culprit"]
    assert (culprit["rank"], culprit["pod"], culprit["file"]) == (3, "gpt-worker-0", None)


def test_a_pipe_without_prefixes_loses_nothing_to_the_look_at_its_beginning() -> None:
    body = piped(died(3))
    assert (body["verdict"]["cause"], body["verdict"]["culprit"]["pod"]) == ("oom", None)
    assert body["recording"]["lines"] == len(died(3).splitlines())


def test_no_pod_is_named_after_a_file(tmp_path: Path) -> None:
    alone = judged(put(tmp_path, died(3), "gpt-worker-7.log")).verdict.culprit
    assert alone is not None
    assert (alone.rank, alone.pod, alone.file) == (3, None, None)
    first = put(tmp_path, steps(), "gpt-worker-6.log")
    several = judged(first, tmp_path / "gpt-worker-7.log").verdict.culprit
    assert several is not None
    assert (several.pod, several.file) == (None, str(tmp_path / "gpt-worker-7.log"))


def test_lines_without_a_prefix_belong_to_the_pod_before(tmp_path: Path) -> None:
    lines = prefixed("a", "one\ntwo") + "three\n" + prefixed("b", "\n".join("456789"))
    with split_by_pod([str(put(tmp_path, lines))]) as logs:
        (folder,) = logs.names
        texts = {path.name: path.read_text() for path in Path(folder).iterdir()}
        numbers = {Path(path).name: list(found.numbers) for path, found in logs.origins.items()}
    assert texts == {"a.log": "one\ntwo\nthree\n", "b.log": "4\n5\n6\n7\n8\n9\n"}
    assert numbers == {"a.log": [1, 2, 3], "b.log": [4, 5, 6, 7, 8, 9]}
    assert not Path(folder).exists()


def test_of_two_containers_the_one_that_printed_most_is_the_pod(tmp_path: Path) -> None:
    text = prefixed("a", "x", "mwatch") + prefixed("a", "one\ntwo", "pytorch")
    with split_by_pod([str(put(tmp_path, text))]) as logs:
        names = sorted(path.name for path in Path(logs.names[0]).iterdir())
    assert names == ["a.log", "a.mwatch.log"]


def test_a_text_that_only_quotes_such_lines_is_left_alone(tmp_path: Path) -> None:
    file = put(tmp_path, prefixed("a", "one") + "my words\n" * 5)
    with split_by_pod([str(file)]) as logs:
        assert (logs.names, logs.origins) == ([str(file)], {})


def test_too_many_pods_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    text = "".join(prefixed(f"p-{each}", "x") for each in range(pod_prefixes.MAX_STREAMS + 1))
    answer = mwatch("diagnose", str(put(tmp_path, text)))
    assert answer.returncode == 2
    assert "more than 256 containers; give fewer" in answer.stderr
