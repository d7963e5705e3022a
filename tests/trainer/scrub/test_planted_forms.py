# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""No form of the table of planted secrets passes: text, arguments, environment."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch_trainer.scrub.known_good import scrubbed, scrubbed_environment
from mwatch_trainer.scrub.scrubber import Scrubber, scrub_text
from support.repository.planted_forms import ARGUMENTS, ENVIRONMENT, TEXTS, plain, secrets_of


def test_the_table_is_long() -> None:
    assert len(TEXTS) + len(ARGUMENTS) + len(ENVIRONMENT) >= 250
    assert all(secrets_of(form) for form in TEXTS)


def test_no_text_keeps_its_secret() -> None:
    kept = [
        form for form in TEXTS
        if any(secret in scrub_text(plain(form)) for secret in secrets_of(form))
    ]  # fmt: skip
    assert kept == []


def test_a_secret_goes_from_a_stream_of_single_lines_too() -> None:
    scrubber, kept = Scrubber(), []
    for form in TEXTS:
        lines = plain(form).encode().split(b"\n")
        clean = b"".join(scrubber.scrub(line + b"\n") for line in lines).decode()
        kept += [form for secret in secrets_of(form) if secret in clean]
        scrubber.scrub(b"an iteration is done\n" * 3)
    assert kept == []


@pytest.mark.parametrize("form", TEXTS)
def test_what_is_scrubbed_stays_as_it_is(form: str) -> None:
    """Alone, and as a text in JSON."""
    for text in (plain(form), json.dumps({"text": plain(form), "more": [plain(form), "x y"]})):
        clean = scrub_text(text)
        assert scrub_text(clean) == clean


@given(st.lists(st.tuples(st.sampled_from(TEXTS), st.sampled_from([" ", "\n", ", ", "='", ": "]))))
def test_so_it_does_among_others(chosen: list[tuple[str, str]]) -> None:
    clean = scrub_text("".join(plain(form) + end for form, end in chosen))
    assert scrub_text(clean) == clean


def test_what_other_writers_left_out_is_not_scrubbed_again() -> None:
    line = "mysql -p[12 characters] --db-pass [7 characters] password: [scrubbed] token=[scrubbed]"
    assert scrub_text(line) == line


@pytest.mark.parametrize("words", ARGUMENTS, ids=" ".join)
def test_arguments_not_known_to_be_harmless_go(words: list[str]) -> None:
    argv = ["torchrun", "--nnodes=2", "train.py", *map(plain, words), "--train-iters", "100"]
    clean = scrubbed(argv, Scrubber())
    secrets = [secret for word in words for secret in secrets_of(word)]
    assert not any(secret in " ".join(clean) for secret in secrets)
    assert clean[:3] == argv[:3]
    assert clean[-2:] == argv[-2:]
    assert scrubbed(clean, Scrubber()) == clean


HARMLESS = [
    "python3 -m torch.distributed.run --nproc-per-node 8 --rdzv-endpoint node-0:29500"
    " pretrain_gpt.py --save /ckpt/a --load /ckpt/b --data-path 0.3 /d/a 0.7 /d/b"
    " --train-iters 500 --lr 1.5e-4"
    " --tokenizer-model meta-llama/Llama-3.1-8B --bf16 --split 949,50,1 --log-interval 10 -1",
    "composer train/train.py train/yamls/7b.yaml save_folder=/ckpt max_duration=100ba model.name=x",
    "deepspeed --hostfile /job/hostfile train.py --deepspeed_config ds.json --output_dir /out",
]


@pytest.mark.parametrize("line", HARMLESS)
def test_known_arguments_stay(line: str) -> None:
    assert scrubbed(line.split(), Scrubber()) == line.split()


def test_the_script_of_a_shell_is_read_as_arguments() -> None:
    script = "cd $HOME && torchrun train.py --save /ckpt --db-pass hunter2 --odd word"
    assert scrubbed(["bash", "-c", script], Scrubber())[2] == (
        "cd $HOME && torchrun train.py --save /ckpt --db-pass [7 characters] --odd [4 characters]"
    )


def test_variables_not_known_to_be_harmless_go() -> None:
    clean = scrubbed_environment({**ENVIRONMENT, "RANK": "3", "NCCL_DEBUG": "INFO"}, Scrubber())
    assert clean.pop("RANK") == "3"
    assert clean.pop("NCCL_DEBUG") == "INFO"
    assert all(ENVIRONMENT[name] != value for name, value in clean.items())
    assert "hunter3" not in str(clean)
    assert clean["ADMIN_PW"] == "[8 characters]"
