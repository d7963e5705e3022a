# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every argument that the chart writes is one of Megatron's, with a value that its parser takes.

Beyond that, `validate_args` of core_v0.12.1 to core_v0.19.0 and main was run over all these command
lines when the chart was written, and had nothing to say.
"""

from __future__ import annotations

import pytest

from support.repository.chart_renders import MEGATRON, arguments, only, rendered, sets
from support.repository.megatron_flags import RELEASES, complaints, pairs
from support.runs.megatron_runs import BERT, LEAST_GPUS, NAMESPACES, OPTIONS, T5, words_for

NEWER = {"sharp": "core_v0.14.0", "retention": "core_v0.14.0"}
"""Options that the chart refuses for older releases."""
_NO_JOB = {"convert"}


def words_of(option: str, release: str = "core_v0.16.1") -> list[str]:
    words = [*OPTIONS[option], *sets(f"image.release={release.removeprefix('core_v')}")]
    objects = rendered(MEGATRON, *words, namespace=NAMESPACES.get(option, "training"))
    return arguments(only(objects, "PyTorchJob"))


@pytest.mark.parametrize("option", sorted(set(OPTIONS) - _NO_JOB))
def test_megatron_knows_every_argument_of_every_option(option: str) -> None:
    oldest = RELEASES.index(NEWER.get(option, RELEASES[0]))
    for release in RELEASES[oldest:]:
        assert complaints(words_of(option, release), release) == []


@pytest.mark.parametrize("size", LEAST_GPUS)
def test_megatron_knows_every_argument_of_every_size(size: str) -> None:
    words = arguments(only(rendered(MEGATRON, *words_for("aks", size)), "PyTorchJob"))
    assert complaints(words, "core_v0.16.1") == []


def test_the_check_of_arguments_can_fail() -> None:
    words = ["pretrain_gpt.py", "--no-such-flag", "--num-layers", "many", "--fp16", "1"]
    assert len(complaints(words, "core_v0.16.1")) == 3


def test_no_flag_is_given_twice() -> None:
    for option in sorted(set(OPTIONS) - _NO_JOB):
        flags = [flag for flag, _ in pairs(words_of(option))]
        assert len(flags) == len(set(flags)), option


def test_bert_of_a_new_release_has_arguments_of_that_release() -> None:
    job = only(rendered(MEGATRON, *OPTIONS["bert of a new release"]), "PyTorchJob")
    assert complaints(arguments(job), "core_v0.19.0") == []


@pytest.mark.parametrize(("words", "name"), [(BERT, "bert"), (T5, "t5")])
@pytest.mark.parametrize(
    ("release", "folder"), [("0.16.1", ""), ("0.17.1", ""), ("0.18.2", "examples/{}/")]
)
def test_bert_and_t5_are_where_the_release_has_them(
    words: list[str], name: str, release: str, folder: str
) -> None:
    objects = rendered(MEGATRON, *words, *sets(f"image.release={release}"))
    script = arguments(only(objects, "PyTorchJob"))[0]
    assert script == f"{folder.format(name)}pretrain_{name}.py"


def test_asynchronous_saves_have_their_worker() -> None:
    """Megatron turns --async-save off again, with a warning alone, where it has not."""
    for option in ("async", "no async"):
        words = words_of(option) if option in OPTIONS else words_of("queue")
        assert ("--async-save" in words) is ("--use-persistent-ckpt-worker" in words)
        assert ("--async-save" in words) is (option == "async")


def test_a_benchmark_trains_on_everything_and_evaluates_nothing() -> None:
    words = dict(pairs(words_of("benchmark")))
    assert words["--eval-iters"] == ["0"]
    assert words["--split"] == ["100,0,0"]


def test_every_run_saves_where_it_loads() -> None:
    for option in sorted(set(OPTIONS) - _NO_JOB):
        words = dict(pairs(words_of(option)))
        assert words["--save"] == words["--load"] == ["/checkpoints/gpt"]


@pytest.mark.parametrize("option", ["benchmark", "bert", "t5"])
@pytest.mark.parametrize(
    ("release", "is_needed"),
    [("0.12.1", False), ("0.14.0", False), ("0.15.0", True), ("0.16.1", True), ("0.17.1", False)],
)
def test_no_rank_asks_the_hub_for_a_tokenizer_whose_files_are_there(
    option: str, release: str, is_needed: bool
) -> None:
    """Releases 0.15 and 0.16 would, at every start; older ones never did."""
    words = words_of(option, f"core_v{release}")
    assert ("--legacy-tokenizer" in words) is is_needed
    assert "--vocab-file" in words


def test_a_tokenizer_of_a_folder_needs_no_such_flag() -> None:
    assert "--legacy-tokenizer" not in words_of("continued")


def test_a_base_model_goes_on_as_it_was_trained() -> None:
    words = dict(pairs(words_of("continued")))
    assert words["--attention-dropout"] == words["--hidden-dropout"] == ["0"]
    assert "--add-qkv-bias" not in words
    qwen = [*OPTIONS["continued"], *sets("continued.modelSize=qwen2.5", "model.rotaryBase=1000000")]
    flags = dict(pairs(arguments(only(rendered(MEGATRON, *qwen), "PyTorchJob"))))
    assert "--add-qkv-bias" in flags
    assert flags["--norm-epsilon"] == ["1e-06"]
    assert flags["--rotary-base"] == ["1000000"]


def test_a_custom_shape_is_really_used() -> None:
    words = dict(pairs(words_of("llama")))
    assert words["--num-layers"] == ["32"]
    assert words["--hidden-size"] == ["4096"]
    assert words["--num-query-groups"] == ["8"]
    assert "--swiglu" in words
