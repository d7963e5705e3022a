# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments are checked before anything heavy is loaded, and a mistake is one line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpt.launch import ROOT
from mwatch_gpt import arguments
from mwatch_gpt.arguments import GROUPS


def test_the_defaults_fit_together() -> None:
    args = arguments.parse([])
    assert (args.data_parallel_size, args.global_batch_size) == (1, args.micro_batch_size)
    assert args.ffn_hidden_size == 4 * args.hidden_size
    assert args.check_for_nan_in_loss_and_grad


def test_fp16_with_a_dynamic_scale_turns_the_guard_off_as_megatron_does() -> None:
    assert not arguments.parse(["--fp16"]).check_for_nan_in_loss_and_grad
    assert arguments.parse(["--fp16", "--loss-scale", "128"]).check_for_nan_in_loss_and_grad


def test_faults_come_from_the_flag_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(arguments.FAULT_VARIABLE, "nan@7")
    args = arguments.parse(["--fault", "kill@3", "--save", "somewhere/ck"])
    assert args.fault == ["kill@3", "nan@7"]
    assert args.fault_state.endswith("somewhere/faults")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--fp16", "--bf16"], "exclude each other"),
        (["--tensor-model-parallel-size", "2"], "1 ranks cannot be split into groups of 2"),
        (["--global-batch-size", "6"], "not a multiple of"),
        (["--hidden-size", "30"], "--hidden-size must be a multiple"),
        (["--fault", "loss-scale-collapse@5"], "needs --fp16"),
        (["--fault", "kill@5:rank=2"], "there are 1 ranks"),
        (["--fault", "kill"], "is not KIND@STEP"),
        (["--log-interval", "0"], "--log-interval 0 is too small"),
        (["--train-iters", "-5"], "--train-iters -5 is too small"),
        (["--split", "most"], "is not three shares"),
        (["--split", "0,1,1"], "is not three shares"),
        (["--no-such-flag"], "unrecognized arguments"),
        (["--train-it", "5"], "unrecognized arguments"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_exit_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leave:
        arguments.parse(argv)
    assert leave.value.code == 2
    assert said in capsys.readouterr().err


def test_help_needs_no_torch_and_names_every_flag() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "mwatch_gpt", "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "trainer")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert all(flag.name in done.stdout for flags in GROUPS.values() for flag in flags)
    assert "loss-scale-collapse" in done.stdout
    assert "| torch" not in done.stderr
