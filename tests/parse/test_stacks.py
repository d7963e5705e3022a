# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The main thread in dumps of the probe, faulthandler and py-spy: what it does, and where."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from mwatch.model.observation import RankStack, StackKind
from mwatch.parse.stacks import MAX_FRAMES, main_thread, rank_stack
from mwatch_trainer.evidence.dumps import source_lines
from mwatch_trainer.probe import dump

TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
HEAD = "# rank 0, pid 7, 2026-11-16T15:00:00+0000, compute\n"


def probe_text(*frames: tuple[str, int, str]) -> str:
    lines = [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    other = [
        "\nthread 0x00007f01 [pin] (most recent call first):",
        '  File "/lib/python3.12/threading.py", line 1 in _bootstrap',
    ]
    head = "\nmain thread 0x00007f00 [MainThread] (most recent call first):"
    return "\n".join([HEAD, head, *lines, *other]) + "\n"


STEP = ("/repo/pretrain.py", 32, "train_step")
MAIN = ("/repo/pretrain.py", 90, "<module>")


def read(*frames: tuple[str, int, str], **sources: str) -> RankStack:
    found = rank_stack(
        3, probe_text(*frames), {f"/repo/pretrain.py:{32}": "".join(sources.values())}
    )
    assert found is not None
    return found


def test_a_call_of_a_c_function_is_named_by_its_source_line() -> None:
    found = read(STEP, MAIN, source="    time.sleep(3600)")
    assert (found.rank, found.kind, found.what) == (3, StackKind.CODE, "time.sleep(3600)")
    assert found.place == "pretrain.py:32 in train_step"
    assert found.frames == ("train_step (repo/pretrain.py:32)", "<module> (repo/pretrain.py:90)")


def test_without_the_source_only_the_place_is_known() -> None:
    assert (read(STEP, MAIN).what, read(STEP, MAIN).place) == ("", "pretrain.py:32 in train_step")


@pytest.mark.parametrize(
    ("inner", "kind", "what"),
    [
        ([(f"{TORCH}/distributed/distributed_c10d.py", 2810, "all_reduce"),
          (f"{TORCH}/distributed/c10d_logger.py", 81, "wrapper")], StackKind.COLLECTIVE,
         "all_reduce"),
        ([(f"{TORCH}/utils/data/dataloader.py", 1243, "_try_get_data"),
          (f"{TORCH}/utils/data/dataloader.py", 701, "__next__")], StackKind.DATA,
         "DataLoader.__next__"),
        ([(f"{TORCH}/cuda/__init__.py", 987, "synchronize")], StackKind.GPU, "synchronize"),
        ([(f"{TORCH}/cuda/streams.py", 240, "synchronize")], StackKind.GPU, "synchronize"),
        ([(f"{TORCH}/distributed/checkpoint/state_dict_saver.py", 9, "save")], StackKind.SAVING,
         "save"),
        ([(f"{TORCH}/nn/functional.py", 7, "linear")], StackKind.CODE, "linear"),
    ],
)  # fmt: skip
def test_the_innermost_known_function_shows_what_the_rank_does(
    inner: list[tuple[str, int, str]], kind: StackKind, what: str
) -> None:
    found = read(*inner, STEP, MAIN)
    assert (found.kind, found.what, found.place) == (kind, what, "pretrain.py:32 in train_step")


def test_a_data_set_without_workers_is_in_the_data_loader() -> None:
    found = read(
        ("/repo/data.py", 12, "__getitem__"),
        (f"{TORCH}/utils/data/dataloader.py", 701, "__next__"),
        STEP,
    )
    assert (found.kind, found.place) == (StackKind.DATA, "data.py:12 in __getitem__")


@pytest.mark.parametrize("call", ["loss.item()", "grads.cpu()", "torch.cuda.synchronize()"])
def test_a_call_that_reads_from_the_gpu_waits_for_it(call: str) -> None:
    assert read(STEP, MAIN, source=call).kind is StackKind.GPU


def test_megatrons_own_collectives_are_recognized_without_a_frame_of_torch() -> None:
    file = "/opt/venv/lib/python3.12/site-packages/megatron/core/distributed/param_and_grad.py"
    found = read((file, 250, "finish_grad_sync"), STEP)
    assert (found.kind, found.place) == (
        StackKind.COLLECTIVE,
        "param_and_grad.py:250 in finish_grad_sync",
    )


def test_a_script_without_functions_is_its_own_place() -> None:
    found = read((f"{TORCH}/nn/functional.py", 7, "linear"), MAIN)
    assert found.place == "pretrain.py:90 in <module>"


PY_SPY = """Process 4242: python pretrain.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 4242 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2810)
    wrapper (torch/distributed/c10d_logger.py:81)
    train_step (training.py:3532)
    <module> (pretrain.py:90)
Thread 4250 (idle): "Thread-1"
    wait (threading.py:331)
"""


def test_a_dump_of_py_spy_is_read() -> None:
    found = rank_stack(0, PY_SPY)
    assert found is not None
    assert (found.kind, found.what) == (StackKind.COLLECTIVE, "all_reduce")
    assert found.place == "training.py:3532 in train_step"


def test_in_a_real_dump_of_faulthandler_the_main_thread_is_the_one_nobody_started() -> None:
    ready, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        go_on.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read().decode()
    go_on.set()
    thread.join()
    names = [frame.function for frame in main_thread(text)]
    assert (
        names[0] == "test_in_a_real_dump_of_faulthandler_the_main_thread_is_the_one_nobody_started"
    )


def test_a_dump_by_the_signal_shows_that_the_probe_could_not_answer() -> None:
    text = "# by the dump signal: the probe did not answer\n" + probe_text(STEP, MAIN)
    found = rank_stack(0, text)
    assert found is not None and found.holds_gil


def test_a_real_process_is_found_where_it_sleeps(tmp_path: Path) -> None:
    script = tmp_path / "pretrain.py"
    script.write_text(
        "import sys, threading\n"
        "from mwatch_trainer.probe import dump\n"
        "gate = threading.Event()\n"
        "def train_step():\n"
        "    gate.wait(timeout=60)\n"
        "def dump_it():\n"
        "    print(dump.stacks('# head'))\n"
        "    gate.set()\n"
        "timer = threading.Timer(0.3, dump_it)\n"
        "timer.start()\n"
        "train_step()\n"
    )
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60
    )
    found = rank_stack(0, run.stdout, source_lines([run.stdout]))
    assert found is not None
    assert found.place == "pretrain.py:5 in train_step"
    assert found.what == "gate.wait(timeout=60)"


def test_text_without_frames_and_long_stacks_are_bounded() -> None:
    assert rank_stack(0, "") is None and rank_stack(0, "Thread 0x1:\n  <no Python frame>\n") is None
    deep = read(*[("/repo/model.py", 7, "f" * 300)] * 1000, MAIN)
    assert len(deep.frames) == MAX_FRAMES and max(map(len, deep.frames)) <= 120


def test_source_lines_are_scrubbed_and_missing_files_are_left_out(tmp_path: Path) -> None:
    script = tmp_path / "secret.py"
    script.write_text('connect(password="hunter2hunter2")\n')
    text = f'thread 0x1 [x]:\n  File "{script}", line 1 in f\n  File "/no/such.py", line 3 in g\n'
    found = source_lines([text])
    assert list(found) == [f"{script}:1"] and "hunter2" not in found[f"{script}:1"]


def test_the_probes_own_dump_has_the_main_thread_first() -> None:
    assert main_thread(dump.stacks("# head"))[0].function == "stacks"
