# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the trainer prints arrives byte for byte, whatever happens to the copy of it."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from support.runs.wrapper_runs import (
    LIMIT_SECONDS,
    ask,
    attempt,
    child_pid,
    command,
    environ,
    helpers,
    kill,
    log,
    python,
    run,
    running,
)
from support.waiting import until

BOTH = """
import os, random, sys
chance = random.Random(int(sys.argv[1]))
for _ in range(400):
    fd = chance.choice((1, 2))
    size = chance.randrange(1, 3000)
    os.write(fd, bytes(chance.randrange(256) for _ in range(size)))
"""


def expected(seed: int) -> tuple[bytes, bytes]:
    chance = random.Random(seed)
    streams = {1: b"", 2: b""}
    for _ in range(400):
        fd = chance.choice((1, 2))
        size = chance.randrange(1, 3000)
        streams[fd] += bytes(chance.randrange(256) for _ in range(size))
    return streams[1], streams[2]


def test_binary_output_in_pieces_arrives_as_it_was_written(tmp_path: Path) -> None:
    ended = run(tmp_path, *python(BOTH, "7"))
    assert (ended.code, (ended.out, ended.err)) == (0, expected(7))


def test_fifty_megabytes_arrive_and_the_log_says_what_it_has_not(tmp_path: Path) -> None:
    code = "import os, sys\nfor n in range(50): os.write(1, b'%08d ' % n + b'x' * 999_990 + b'\\n')"
    ended = run(tmp_path, *python(code))
    whole = b"".join(b"%08d " % n + b"x" * 999_990 + b"\n" for n in range(50))
    assert hashlib.sha256(ended.out).digest() == hashlib.sha256(whole).digest()
    assert (ended.code, ended.err) == (0, b"")
    kept = [each for each in (tmp_path).glob("trainer.log*")]
    assert sum(each.stat().st_size for each in kept) <= 51_000_000


def test_one_file_for_both_streams_keeps_their_order(tmp_path: Path) -> None:
    code = "import os\nfor n in range(3000): os.write(1 + n % 2, b'%d\\n' % n)"
    done = subprocess.run(
        command(*python(code), options=["--no-node-facts", "--dir", str(tmp_path)]),
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_SECONDS,
        check=True,
    )
    assert done.stdout == b"".join(b"%d\n" % n for n in range(3000))


def test_the_copy_has_whole_lines_of_each_stream(tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "os.write(1, b'one '); os.write(2, b'two '); time.sleep(0.05)\n"
        "os.write(1, b'half\\n'); os.write(2, b'half\\nlast')"
    )
    ended = run(tmp_path, *python(code))
    assert (ended.out, ended.err) == (b"one half\n", b"two half\nlast")
    assert sorted(log(tmp_path).splitlines()) == [b"last", b"one half", b"two half"]


def test_secrets_are_taken_out_of_the_copy_alone(tmp_path: Path) -> None:
    line = b"HF_TOKEN=hf_" + b"A1b2C3d4E5" * 4 + b" is set\n"
    ended = run(tmp_path, "printf", "%s", line.decode())
    assert ended.out == line
    assert log(tmp_path) == b"HF_TOKEN=[scrubbed hugging-face] is set\n"


def test_a_pattern_of_the_user_is_scrubbed_too(tmp_path: Path) -> None:
    options = ["--scrub-pattern", "project-[a-z]+", "--scrub-pattern", "for (?P<secret>[A-Z]+)"]
    run(tmp_path, "echo", "project-manhattan for ALICE", options=options)
    assert log(tmp_path) == b"[scrubbed] for [scrubbed]\n"


def test_a_reader_that_goes_away_does_not_stop_the_trainer(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfor n in range(400): os.write(1, b'%d\\n' % n * 100)\n"
        "open(sys.argv[1], 'w').write('done')"
    )
    mark = tmp_path / "mark"
    with running(tmp_path / "dir", *python(code, str(mark))) as wrapper:
        assert wrapper.stdout is not None
        wrapper.stdout.close()
        wrapper.stdout = None
        assert wrapper.wait(LIMIT_SECONDS) == 0
    assert mark.read_text() == "done"
    assert log(tmp_path / "dir").endswith(b"399\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_it_starts_with_closed_files(tmp_path: Path, closed: str) -> None:
    words = command("sh", "-c", "echo out; echo err >&2; exit 5", options=["--dir", str(tmp_path)])
    shell = ["sh", "-c", f'"$@" {closed}', "sh", *words]
    done = subprocess.run(
        shell, env=environ(), capture_output=True, timeout=LIMIT_SECONDS, check=False
    )
    assert done.returncode == 5
    assert sorted(log(tmp_path).splitlines()) == [b"err", b"out"]
    assert done.stdout == (b"" if " >" in f" {closed}" else b"out\n")


def test_what_comes_in_is_for_the_trainer(tmp_path: Path) -> None:
    assert run(tmp_path, "cat", given=b"a\0b\n").out == b"a\0b\n"


def test_a_full_disk_is_counted_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").symlink_to("/dev/full")
    ended = run(tmp_path, *python("print('x' * 70 + '\\n', end='') or print('y')"))
    assert (ended.code, ended.out) == (0, b"x" * 70 + b"\ny\n")


def test_a_disk_that_hangs_costs_the_trainer_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trainer.log")
    code = "import os\nfor n in range(300): os.write(1, b'z' * 99_999 + b'\\n')"
    ended = run(tmp_path, *python(code))
    assert ended.code == 0
    assert len(ended.out) == 30_000_000
    assert attempt(tmp_path)["exit"]["code"] == 0


def test_the_log_is_rotated_and_stays_in_its_bound(tmp_path: Path) -> None:
    code = "import time\nfor n in range(3000): print('%060d' % n, flush=n % 10 == 0)"
    ended = run(tmp_path, *python(code), options=["--log-bytes", "40000"])
    parts = sorted(tmp_path.glob("trainer.log*"), reverse=True)
    assert [each.name for each in parts] == [
        *(f"trainer.log.{n}" for n in (3, 2, 1)),
        "trainer.log",
    ]
    assert all(0 < each.stat().st_size <= 10_000 for each in parts)
    whole = b"".join(each.read_bytes() for each in parts)
    assert ended.out.endswith(whole)
    assert whole.startswith(b"0")


def test_a_second_run_goes_on_in_the_same_log(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_bytes(b"killed in the mid")
    run(tmp_path, "echo", "next")
    assert log(tmp_path) == b"killed in the mid\nnext\n"


def test_without_a_folder_the_output_is_passed_on(tmp_path: Path) -> None:
    ended = run(None, "sh", "-c", "echo hi; exit 4")
    assert (ended.code, ended.out) == (4, b"hi\n")
    assert b"no folder to write to" in ended.err
    (tmp_path / "file").write_text("")
    ended = run(tmp_path / "file" / "sub", "echo", "hi")
    assert (ended.code, ended.out) == (0, b"hi\n")
    assert b"cannot be used" in ended.err


SLOW = """
import os, sys, time
for n in range(1000):
    os.write(1, b'%d\\n' % n)
    time.sleep(0.002)
    if n == 50:
        open(sys.argv[1], 'w').close()
        while not os.path.exists(sys.argv[3]): time.sleep(0.01)
open(sys.argv[2], 'w').close()
"""


def test_a_killed_wrapper_leaves_the_trainer_and_its_output_alone(tmp_path: Path) -> None:
    early, late, gate = (tmp_path / name for name in ("early", "late", "gate"))
    words = python(SLOW, str(early), str(late), str(gate))
    with running(tmp_path / "dir", *words) as wrapper:
        child = child_pid(tmp_path / "dir")
        until(early.exists)
        wrapper.kill()
        gate.touch()
        assert wrapper.stdout is not None
        assert wrapper.stdout.read() == b"".join(b"%d\n" % n for n in range(1000))
        until(late.exists)
        kill(child)


def test_a_killed_pump_is_replaced(tmp_path: Path) -> None:
    early, late, gate = (tmp_path / name for name in ("early", "late", "gate"))
    words = python(SLOW, str(early), str(late), str(gate))
    with running(tmp_path / "dir", *words) as wrapper:
        until(early.exists)
        pump = _pump(wrapper.pid)
        assert pump is not None
        kill(pump)
        gate.touch()
        assert wrapper.stdout is not None
        lines = wrapper.stdout.read().split()
        assert wrapper.wait(LIMIT_SECONDS) == 0
    assert lines == [b"%d" % n for n in range(1000)]
    assert log(tmp_path / "dir").endswith(b"\n999\n")


FULL = """
import os, random, sys
data = random.Random(5).randbytes(3_000_000)
open(sys.argv[1], 'w').close()
while data:
    data = data[os.write(1, data):]
"""


def test_pumps_that_are_killed_while_nobody_reads_lose_no_byte(tmp_path: Path) -> None:
    """Each has hold of output that it cannot pass on; the last one is a thread of the wrapper."""
    early = tmp_path / "early"
    with running(tmp_path / "dir", *python(FULL, str(early))) as wrapper:
        until(early.exists)
        killed: set[int] = set()
        while len(killed) < 3:
            pump = until(lambda: {_pump(wrapper.pid)} - {None} - killed).pop()
            until(lambda: _printed(tmp_path / "dir") > 0)
            kill(pump)
            killed.add(pump)
        assert wrapper.stdout is not None
        data = wrapper.stdout.read()
        assert wrapper.wait(LIMIT_SECONDS) == 0
    assert data == random.Random(5).randbytes(3_000_000)


def _printed(directory: Path) -> int:
    output = ask(str(directory), {"op": "status"}).get("output") or {}
    return int(output.get("printed_bytes", 0))


def _pump(wrapper: int) -> int | None:
    found = helpers(wrapper, "output.pump")
    return found[0] if found else None


def test_no_thread_of_the_wrapper_is_nice(tmp_path: Path) -> None:
    """One that waits for a core while it holds the interpreter's lock keeps signals waiting, and on
    a busy node it copied nothing within the time that it has at the end."""
    with running(tmp_path, "sleep", "600") as wrapper:
        until(lambda: child_pid(tmp_path))
        levels = set()
        for each in Path(f"/proc/{wrapper.pid}/task").glob("*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it was about to end
                levels.add(each.read_text().rpartition(")")[2].split()[16])
    assert levels == {str(os.getpriority(os.PRIO_PROCESS, 0))}
