# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch inject`, `uninject` and `diagnose -f`, as a person calls them."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from mwatch.kube.errors import NoPermission
from mwatch.operate.inject import choose
from support.repository.json_schema import read_json
from support.repository.manifest_files import FOLDER, text_of
from support.runs import commands

ROOT = Path(__file__).resolve().parents[2]
JOB = str(FOLDER / "hyperpod.yaml")
# A cluster of whoever runs the tests must not be asked.
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if not key.startswith("KUBE")},
    "PYTHONPATH": f"{ROOT / 'sidecar'}:{ROOT / 'trainer'}",
    "HOME": "/nonexistent",
}


def mwatch(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return commands.mwatch(*words, stdin=given, environment=ENVIRONMENT)


def test_a_manifest_in_and_a_manifest_out_and_back() -> None:
    done = mwatch("inject", "-f", JOB)
    assert done.returncode == 0
    assert "names no registry: nodes look for it at docker.io" in done.stderr
    assert f"{JOB}:21: warning: elasticPolicy" in done.stderr
    back = mwatch("uninject", given=done.stdout)
    assert (back.returncode, back.stdout) == (0, text_of("hyperpod.yaml"))


def test_a_native_sidecar_comes_with_a_word_about_failed_pulls() -> None:
    done = mwatch("inject", "-f", JOB, "--sidecar", "native", "--image", "example.com/mwatch:7")
    assert "a native sidecar holds the whole pod back while its image" in done.stderr
    assert "no cluster was asked" in done.stderr
    job = list(yaml.safe_load_all(done.stdout))[1]
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert [each["image"] for each in pod["initContainers"]] == ["example.com/mwatch:7"]


def test_a_diff_is_plain_text_when_piped_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.yaml"
    done = mwatch("inject", "-f", JOB, "--diff", "-o", str(out))
    assert done.stdout.startswith(f"--- {JOB}\n+++ {JOB} (changed)\n@@ ")
    assert "\x1b" not in done.stdout
    assert not out.exists()


def test_in_place_replaces_the_file_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text_of("jobset.yaml"))
    file.chmod(0o640)
    assert mwatch("inject", "-f", str(file), "--in-place").stdout == ""
    assert "mwatch.dev/injected" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    mwatch("uninject", "-f", str(file), "--in-place")
    assert file.read_text() == text_of("jobset.yaml")
    assert list(tmp_path.iterdir()) == [file]


def test_json_has_objects_notes_and_findings() -> None:
    done = mwatch("inject", "-f", JOB, "--json")
    told = read_json(done.stdout, "injected")
    assert told["jobs"] == ["PyTorchJob/megatron"]
    assert told["notes"] == told["said"] != [], "the old key stays for one release"
    assert [each["kind"] for each in told["objects"]] == ["Service", "Service", "PyTorchJob"]
    assert {each["check"] for each in told["findings"]} == {"elastic", "rendezvous-store"}


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        (["inject"], "kind: Nothing\n", "<stdin>:1: has no job that mwatch knows"),
        (["inject", "-f", "/no/such/file"], "", "/no/such/file: cannot be read"),
        (["inject", "-f", str(FOLDER)], "", "cannot be read"),
        (["uninject"], "a: [\n", "<stdin>:2: invalid YAML"),
        (["diagnose", "-f", "-"], "kind: Nothing\n", "<stdin>: no training job"),
        (["inject", "-f", JOB, "--only", "x"], "", "no job is called x"),
        (["inject", "-f", JOB, "--kubeconfig", "/no/file"], "", "no cluster"),
        (["inject", "--in-place"], "", "--in-place"),
        (["inject", "-f", JOB, "--image", "My/Image"], "", "'My' is not lower-case letters"),
        (["diagnose", "-f", JOB, "logs"], "", "not both"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words: list[str], given: str, said: str) -> None:
    done = mwatch(*words, given=given)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(b"\xff\xfe")
    assert "not UTF-8 text" in mwatch("inject", "-f", str(file)).stderr


def test_diagnose_checks_a_manifest() -> None:
    done = mwatch("diagnose", "-f", JOB)
    assert done.returncode == 1
    assert done.stdout.startswith("PyTorchJob/megatron")
    assert "fix: take elasticPolicy away" in done.stdout and f"{JOB}:21\n" in done.stdout
    told = read_json(mwatch("diagnose", "-f", JOB, "--json").stdout, "manifest")
    assert told["findings"][0]["check"] == "elastic" and told["findings"][0]["line"] == 21


def test_diagnose_never_cuts_what_is_to_be_done(tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 40)
    deep.mkdir()
    file = deep / "job.yaml"
    file.write_bytes(Path(JOB).read_bytes())
    said = " ".join(mwatch("diagnose", "-f", str(file)).stdout.split())
    found = read_json(mwatch("diagnose", "-f", str(file), "--json").stdout, "manifest")["findings"]
    assert found
    for each in found:
        assert each["seen"] in said and f"fix: {each['fix']}" in said


def test_diagnose_of_a_good_manifest_and_of_one_with_only_a_hint() -> None:
    good = text_of("jobset.yaml").replace(
        "- {name: ckpt, mountPath: /ckpt, subPath: team}",
        "- {name: ckpt, mountPath: /ckpt}\n              - {name: shm, mountPath: /dev/shm}",
    )
    done = mwatch("diagnose", "-f", "-", given=good)
    assert (done.returncode, "nothing found" in done.stdout) == (0, True)
    hint = good.replace(
        "  name: gpt\n", "  name: gpt\n  labels: {kueue.x-k8s.io/queue-name: a}\n", 1
    )
    done = mwatch("diagnose", "-f", "-", given=hint)
    assert (done.returncode, "info" in done.stdout) == (0, True)


def test_a_native_sidecar_is_used_if_the_cluster_keeps_it() -> None:
    form, said = choose("native", ["PyTorchJob"], lambda _: True)
    assert (
        form == "native" and [each for each in said if "holds the whole pod back" in each] == said
    )
    form, said = choose("native", ["JobSet", "PyTorchJob"], lambda kind: kind == "JobSet")
    assert form == "container" and "drops native sidecars of a PyTorchJob" in said[0]
    form, said = choose("native", ["JobSet"], lambda _: None)
    assert form == "native" and "cannot find out" in said[-1]
    assert choose("container", ["JobSet"], lambda _: True) == ("container", [])


def test_a_cluster_that_does_not_let_us_ask_is_reported() -> None:
    def forbidden(_: str) -> bool | None:
        raise NoPermission("may not create pytorchjobs; ask for that right")

    form, said = choose("native", ["PyTorchJob"], forbidden)
    assert form == "native" and "may not create" in said[-1]
