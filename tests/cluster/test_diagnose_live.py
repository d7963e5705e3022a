# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch diagnose`, `status` and `checkpoints` of a PyTorchJob that a real node runs.

Its trainer is a script that prints what Megatron prints, in two pods: the last rank's pod prints
iterations, the first one's its arguments and saves. Then all fall silent.
"""

from __future__ import annotations

import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urljoin
from urllib.request import urlopen

import pytest

from cluster.images import MWATCH
from cluster.kubectl import Kubectl
from cluster.wrapper import provide
from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import inject_text
from support.repository.manifest_files import unlisted_objects_in

pytestmark = pytest.mark.timeout(1800)
ROOT = Path(__file__).resolve().parents[2]
PYTHON = "python3"
TRAINER = """
import os, sys, time
pod = os.environ.get('HOSTNAME', '')
def say(text): print(text, flush=True)
if pod.endswith('worker-0'):
    say('------------------------ arguments ------------------------')
    for name, value in (('log_interval', 1), ('save', '/ckpt'), ('load', '/ckpt'),
                        ('world_size', 2), ('tensor_model_parallel_size', 1),
                        ('pipeline_model_parallel_size', 2), ('train_iters', 1000),
                        ('save_interval', 10), ('num_layers', 4)):
        say(f'  {name} ' + '.' * 30 + f' {value}')
    say('-------------------- end of arguments ---------------------')
else:
    time.sleep(4)  # a real rank waits for the others
for number in range(1, 13):
    time.sleep(0.3)
    if pod.endswith('worker-1'):
        stamp = time.strftime('%Y-%m-%d %H:%M:%S')
        say(f' [{stamp}] iteration {number:8d}/    1000 | consumed samples: {number * 8:12d} | '
            f'elapsed time per iteration (ms): 300.0 | learning rate: 6.000000E-05 | '
            f'global batch size:     8 | lm loss: 6.0E+00 | loss scale: 1.0 | grad norm: 0.791 | '
            f'number of skipped iterations:   0 | number of nan iterations:   0 |')
    elif number == 10:
        say('saving checkpoint at iteration      10 to /ckpt in torch_dist format')
        say('successfully saved checkpoint from iteration      10 to /ckpt')
END
"""
CRASHES = """
    if number == 9 and pod.endswith('worker-1'):
        say('Traceback (most recent call last):')
        say('  File "train.py", line 7, in step')
        say('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB')
        sys.exit(1)
"""
SAVES = """
    if number == 10 and pod.endswith('worker-0'):
        from pathlib import Path
        folder = Path('/ckpt/iter_0000010/mp_rank_00')
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'model_optim_rng.pt').write_bytes(b'x' * 1000)
        Path('/ckpt/latest_checkpointed_iteration.txt').write_text('10')
"""
FOLDER = "/tmp/mwatch-diagnose-live"
LAST_LINE = "12/    1000 | consumed samples"
SECONDS = 240.0


def trainer(end: str, inside: str = "") -> str:
    return TRAINER.replace("END", inside + "\n" + end)


def pytorchjob(name: str, script: str) -> dict[str, Any]:
    container = {
        "name": "pytorch",
        "image": MWATCH,
        "imagePullPolicy": "IfNotPresent",
        "command": [PYTHON, "-c", script],
    }
    worker = {
        "replicas": 2,
        "restartPolicy": "OnFailure",
        "template": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}},
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }


def environment(cluster: Kubectl) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'sidecar'}:{ROOT / 'trainer'}",
        "KUBECONFIG": str(cluster.kubeconfig),
    }


def mwatch(cluster: Kubectl, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mwatch", *words],
        capture_output=True, text=True, timeout=180, env=environment(cluster), check=False,
    )  # fmt: skip


Printed = subprocess.CompletedProcess[str]


def mwatch_until(cluster: Kubectl, *words: str, is_so: Callable[[Printed], bool]) -> Printed:
    """What `mwatch` first prints that is so: on a busy machine a pod may not answer in time."""
    until = time.monotonic() + SECONDS
    while not is_so(done := mwatch(cluster, *words)):
        assert time.monotonic() < until, f"{done.stderr}\n{done.stdout[:3000]}"
        time.sleep(2.0)  # a program each time
    return done


def told(cluster: Kubectl, name: str, is_so: Callable[[Any], bool]) -> Any:
    """The first answer that is so."""
    words = ("diagnose", name, "-n", "default", "--json")
    done = mwatch_until(
        cluster, *words, is_so=lambda e: bool(e.stdout) and is_so(json.loads(e.stdout))
    )
    assert done.returncode in (0, 1, 3)
    return json.loads(done.stdout)


def hangs_at_the_end(body: Any) -> bool:
    """A busy machine may stop the trainer for a while before: that looks the same."""
    return bool(body["verdict"]["cause"] == "hang" and body["job"]["iteration"] == 12)


def tracker_of(body: Any) -> dict[str, Any]:
    return next(dict(each) for each in body["checks"] if each["check"] == "tracker")


def listed(done: Printed, name: str) -> tuple[str, str, int | None] | None:
    """What `mwatch status --json` says of the job: who says it, its cause and iteration."""
    jobs = json.loads(done.stdout)["jobs"] if done.stdout else []
    mine = (each for each in jobs if each["name"] == name)
    return next(((each["source"], each["cause"], each["iteration"]) for each in mine), None)


def reported(
    cluster: Kubectl,
    name: str,
    folder: Path,
    namespace: str = "default",
    is_so: Callable[[str], bool] = bool,
) -> str:
    """The page that `mwatch report` makes of the job, once it is so."""
    out = folder / f"{name}.html"

    def is_made(done: Printed) -> bool:
        return (done.returncode, done.stderr) == (0, "") and is_so(out.read_text("utf-8"))

    done = mwatch_until(cluster, "report", name, "-n", namespace, "--out", str(out), is_so=is_made)
    assert done.stdout.splitlines()[1] == out.as_uri()
    return out.read_text("utf-8")


@contextmanager
def shown(cluster: Kubectl, *words: str, path: str = "") -> Iterator[str]:
    """The address that `mwatch ui` prints; it ends by Ctrl-C. `path`: of the page that is wanted;
    another comes where the controller is too busy to answer."""
    until = time.monotonic() + SECONDS
    while True:
        with _shown(cluster, *words) as address:
            if path in address or time.monotonic() > until:
                yield address
                return


@contextmanager
def _shown(cluster: Kubectl, *words: str) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "mwatch", "ui", *words, "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(cluster),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = process.stdout.readline().partition(" ")[0]
        assert address.startswith("http://127.0.0.1:"), process.communicate()
        yield address
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def follow(address: str, seconds: float = 5.0) -> None:
    """As a browser does: open the page, and ask for its changes a few times."""
    with urlopen(address, timeout=60) as answer:
        page = answer.read().decode()
        assert "connect-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "/proxy" not in page, "links would lead to the API server"
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [b64encode(sha256(each.encode()).digest()).decode() for each in scripts]
    assert scripts and all(each in answer.headers["Content-Security-Policy"] for each in hashes)
    pattern = r'data-page="(\w+)" data-after="([\w.]+)" data-address="([^"]+)"'
    known = re.search(pattern, page)
    assert known is not None
    changes = html.unescape(known[3])
    changes += f"{'&' if '?' in changes else '?'}page={known[1]}&after={known[2]}"
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with urlopen(urljoin(address, changes), timeout=60) as answer:
            assert json.loads(answer.read())["wait"] > 0
        time.sleep(1.0)  # as long as a page waits


def test_without_sidecars_the_logs_of_all_pods_show_who_hangs(
    cluster: Kubectl, tmp_path: Path
) -> None:
    name = "plain"
    cluster.apply(pytorchjob(name, trainer("time.sleep(600)")))
    try:
        body = told(
            cluster, name,
            lambda each: each["job"]["pods"]["logs_read"] == 2 and hangs_at_the_end(each),
        )  # fmt: skip
        words = ("diagnose", f"pytorchjob/{name}", "-n", "default")
        screen = mwatch_until(
            cluster, *words, is_so=lambda each: each.stdout.startswith("HANG")
        ).stdout
        page = reported(cluster, name, tmp_path, is_so=lambda text: LAST_LINE in text)
        unseen = mwatch(cluster, "ui", name, "-n", "default", "--no-browser")
    finally:
        cluster("delete", "pytorchjob", name, "--wait=false")
    assert body["job"]["pods"] == {"wanted": 2, "running": 2, "answering": 0, "logs_read": 2}
    assert (body["job"]["iteration"], body["job"]["total_iterations"]) == (12, 1000)
    assert body["verdict"]["since"]["iteration"] == 13
    assert body["findings"][0]["evidence"][0]["file"] == f"{name}-worker-1"
    assert screen.startswith("HANG since iteration 13")
    assert "history: only from the logs" in page and LAST_LINE in page
    assert unseen.returncode == 3
    assert f"'mwatch report {name} -n default' makes a page of the logs" in unseen.stderr


def test_a_crashed_container_is_explained_from_its_previous_log(cluster: Kubectl) -> None:
    name = "broken"
    cluster.apply(pytorchjob(name, trainer("time.sleep(600)", CRASHES)))
    try:
        body = told(
            cluster, name,
            lambda each: each["verdict"]["cause"] == "oom" and bool(each["verdict"]["culprit"]),
        )  # fmt: skip
    finally:
        cluster("delete", "pytorchjob", name, "--wait=false")
    assert body["verdict"]["culprit"]["pod"] == f"{name}-worker-1"
    assert "kubectl logs" in body["next_command"]


def test_sidecars_are_asked_by_the_proxy_of_the_api_server(
    cluster: Kubectl, tmp_path: Path
) -> None:
    name = "watched"
    content = pytorchjob(name, trainer("time.sleep(600)", SAVES))
    template = content["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    # One node: its disk is what a shared volume is elsewhere.
    template["volumes"] = [
        {"name": "ckpt", "hostPath": {"path": FOLDER, "type": "DirectoryOrCreate"}}
    ]
    template["securityContext"] = {"runAsUser": 0}  # the kubelet makes the folder, for root
    template["containers"][0]["volumeMounts"] = [{"name": "ckpt", "mountPath": "/ckpt"}]
    template["containers"][0]["args"] = ["--save", "/ckpt", "--load", "/ckpt"]
    wish = InjectRequest(MWATCH, "native", python=PYTHON)
    provide(cluster, "default")
    cluster.apply(*unlisted_objects_in(inject_text(json.dumps(content), "job.json", wish).text))
    try:
        body = told(
            cluster, name,
            lambda each: (
                each["job"]["pods"]["answering"] == 2
                and hangs_at_the_end(each)
                and tracker_of(each)["state"] == "found"
            ),
        )  # fmt: skip
        status = mwatch_until(
            cluster, "status", "-n", "default", "--json",
            is_so=lambda each: listed(each, name) == ("sidecars", "hang", 12),
        )  # fmt: skip
        words = ("checkpoints", name, "-n", "default", "--json")
        stored = mwatch_until(cluster, *words, is_so=lambda each: each.returncode == 1)
        page = reported(cluster, name, tmp_path, is_so=lambda text: LAST_LINE in text)
        with shown(cluster, name, "-n", "default") as address:
            follow(address)
    finally:
        cluster("delete", "pytorchjob", name, "--wait=false")
    assert body["job"]["iteration"] == 12
    assert {each["sidecar"] for each in body["pods"]} == {"answers"}
    assert listed(status, name) == ("sidecars", "hang", 12)
    assert status.returncode == 1
    found = json.loads(stored.stdout)
    assert (stored.returncode, found["folder"], found["tracker"]) == (1, "/ckpt", "10")
    assert "not a file of torch.save" in found["checkpoints"][0]["reason"]
    assert f"history: from the sidecar of {name}-worker-" in page
    assert LAST_LINE in page, "the end of the log"
    assert tracker_of(body)["state"] == "found", "it names one that is not whole"
