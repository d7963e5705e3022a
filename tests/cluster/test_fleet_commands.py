# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch status` and `mwatch top` on a real API server, in a pipe and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl

import pytest

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from cluster.people import environment, mwatch, ready_node, run_pods
from mwatch.kube.access import Access

pytestmark = pytest.mark.timeout(600)  # several Pythons that start


def read_until(terminal: int, wanted: bytes, seconds: float = 120.0) -> bytes:
    found, until = b"", time.monotonic() + seconds
    while wanted not in found:
        ready, _, _ = select.select([terminal], [], [], max(0.0, until - time.monotonic()))
        assert ready, found
        found += os.read(terminal, 65536)
    return found


def test_status_shows_each_watched_job_in_one_line(plane: ControlPlane, access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace, "gpt", pods=2)
    run_pods(access, job, 2, ready_node(access, "well-four"))
    things.make_job(access, namespace, "waits", pods=2)
    done = mwatch(plane, "status", "-n", namespace)
    head, *lines = done.stdout.splitlines()
    names = ["JOB", "KIND", "MODE", "PHASE", "PODS", "ITERATION", "VERDICT", "SINCE", "CULPRIT"]
    assert head.split() == names
    assert [line.split()[:5] for line in lines] == [
        ["gpt", "Job", "act", "-", "2/2"],
        ["waits", "Job", "act", "scheduling", "0/2"],
    ]
    assert done.returncode == 3, "nobody sees how gpt is"
    everywhere = json.loads(mwatch(plane, "status", "-A", "--json").stdout)
    assert {"gpt", "waits"} <= {each["name"] for each in everywhere["jobs"]}
    empty = mwatch(plane, "status", "-n", things.fresh_namespace(access))
    assert (empty.returncode, empty.stdout.startswith("no watched job")) == (0, True)


def test_top_prints_one_table_into_a_pipe_or_one_object(
    plane: ControlPlane, access: Access
) -> None:
    namespace = things.fresh_namespace(access)
    things.make_job(access, namespace, "gpt", pods=2)
    done = mwatch(plane, "top", "-n", namespace)
    assert (done.returncode, done.stdout.count("JOB"), done.stdout.count("gpt")) == (0, 1, 1)
    assert "\x1b" not in done.stdout
    (job,) = json.loads(mwatch(plane, "top", "-n", namespace, "--json").stdout)["jobs"]
    assert (job["name"], job["kind"], job["culprit"]) == ("gpt", "Job", None)


def test_top_on_a_terminal_opens_a_job_ends_with_q_and_gives_it_back(
    plane: ControlPlane, access: Access
) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace, "gpt", pods=2)
    run_pods(access, job, 2, ready_node(access, "well-five"))
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    before = termios.tcgetattr(theirs)
    words = [sys.executable, "-m", "mwatch", "top", "-n", namespace, "--every", "60"]
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(plane)
    ) as process:
        try:
            shown = read_until(ours, b"gpt")
            os.write(ours, b"\r")
            shown += read_until(ours, b"2 of 2 pods run")
            os.write(ours, b"q")
            shown += read_until(ours, b"\x1b[?1049l")
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert b"\x1b[?1049h" in shown and b"Traceback" not in shown
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
