# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The training program inside a command line."""

from __future__ import annotations

import shlex

import pytest

from mwatch_trainer.command.argv import find_program, value_of, with_value, without

ARGS = "--save /c --load /c"


@pytest.mark.parametrize(
    "command",
    [
        f"python pretrain_gpt.py {ARGS}",
        f"python3.11 -u /w/pretrain_gpt.py {ARGS}",
        f"torchrun --nproc_per_node 8 --nnodes=2 pretrain_gpt.py {ARGS}",
        f"torchrun --nproc-per-node 8 --rdzv_backend c10d -m megatron.train {ARGS}",
        f"python -m torch.distributed.run --standalone pretrain_gpt.py {ARGS}",
        f"python -m torch.distributed.launch --nnodes 2 pretrain_gpt.py {ARGS}",
        f"python -u -m mwatch_gpt {ARGS}",
        f"deepspeed --hostfile /h pretrain_gpt.py {ARGS}",
        f"accelerate launch --config_file x.yaml pretrain_gpt.py {ARGS}",
        f"ft_launcher --nproc-per-node=8 pretrain_gpt.py {ARGS}",
        f"srun --label -n 16 python -u pretrain_gpt.py {ARGS}",
        f"env CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun pretrain_gpt.py {ARGS}",
        f"numactl -m 0 python pretrain_gpt.py {ARGS}",
        f"nsys profile -o out torchrun pretrain_gpt.py {ARGS}",
        f"timeout 3600 /opt/venv/bin/torchrun pretrain_gpt.py {ARGS}",
        f"megatron-train {ARGS}",
    ],
)
def test_the_arguments_of_the_program_are_found(command: str) -> None:
    words = shlex.split(command)
    program = find_program(words, {})
    assert program.obstacle is None
    assert (*words[: program.start], *program.args) == tuple(words)
    assert program.args == ("--save", "/c", "--load", "/c")


def test_a_launcher_is_named() -> None:
    assert find_program(["torchrun", "x.py"], {}).launcher == "torchrun"
    assert find_program(["composer", "train.py", "y.yaml"], {}).launcher == "composer"
    assert find_program(["python", "x.py"], {}).launcher is None
    foundry = find_program(["llmfoundry", "train", "y.yaml", "a=b"], {})
    assert (foundry.launcher, foundry.args) == ("llmfoundry", ("y.yaml", "a=b"))


@pytest.mark.parametrize(
    "words",
    [
        ["bash", "-c", "torchrun pretrain_gpt.py --save /c"],
        ["/bin/sh", "-ec", "cd /w && exec python pretrain_gpt.py --save /c"],
        ["bash", "-xec", "set -e\ncd /w; torchrun \\\n pretrain_gpt.py --save /c 2>&1 | tee log"],
        ["bash", "-c", "export X=1; torchrun pretrain_gpt.py --save $SAVE/run"],
        ["srun", "bash", "-c", 'python "pretrain_gpt.py" --save "${SAVE}"/run'],
    ],
)
def test_a_text_for_a_shell_is_read_and_not_edited(words: list[str]) -> None:
    program = find_program(words, {"SAVE": "/c"})
    assert program.obstacle is not None and "text for" in program.obstacle
    assert value_of(program.args, "--save") in ("/c", "/c/run")
    assert program.start == len(words)


def test_what_a_launch_script_does_is_not_known() -> None:
    for words in (["bash", "train.sh", "--save", "/c"], ["./train.sh", "--save", "/c"]):
        program = find_program(words, {})
        assert program.obstacle is not None and "train.sh" in program.obstacle
        assert value_of(program.args, "--save") == "/c"


@pytest.mark.parametrize(
    "words",
    [[], ["bash"], ["bash", "-c"], ["bash", "-c", "echo 'open"], ["python", "-c", "x"], ["-m"]],
)
def test_strange_command_lines_raise_nothing(words: list[str]) -> None:
    assert value_of(find_program(words, {}).args, "--save") is None


def test_both_forms_of_a_flag_are_read_and_the_last_one_counts() -> None:
    assert value_of(["--load", "/a"], "--load") == "/a"
    assert value_of(["--load=/a"], "--load") == "/a"
    assert value_of(["--load", "/a", "--load=/b"], "--load") == "/b"
    assert value_of(["--loader", "/a", "--load"], "--load") is None
    assert value_of(["--load", "--save", "/a"], "--load") is None


def test_a_flag_is_changed_in_the_form_it_had() -> None:
    assert with_value(["--load=/a", "-x"], "--load", "/b") == ("--load=/b", "-x")
    assert with_value(["--load", "/a", "-x"], "--load", "/b") == ("--load", "/b", "-x")
    assert with_value(["-x"], "--load", "/b") == ("-x", "--load", "/b")
    assert with_value(["--load", "--y"], "--load", "/b") == ("--load", "--y", "--load", "/b")
    twice = ["--load", "/a", "--load=/c"]
    assert with_value(twice, "--load", "/b") == ("--load", "/a", "--load=/b")


def test_a_flag_is_taken_away_with_its_value() -> None:
    args = ["--a", "1", "--x", "v", "--x=w", "--y", "--x"]
    assert without(args, "--x", True) == ("--a", "1", "--y")
    assert without(["--f", "v", "--f"], "--f", False) == ("v",)
    assert without(["--x", "--y"], "--x", True) == ("--y",)
