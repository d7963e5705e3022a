# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every argument that the chart writes is one of Megatron's, with a value that its parser takes.

Beyond that, `validate_args` of core_v0.12.1 to core_v0.19.0 and main was run over all these command
lines when the chart was written, and had nothing to say.
"""

from __future__ import annotations

import pytest

from chart_renders import MEGATRON, arguments, only, rendered, sets
from megatron_flags import RELEASES, complaints, pairs
from megatron_runs import BERT, LEAST_GPUS, NAMESPACES, OPTIONS, T5, words_for

NEWER = {"sharp": "core_v0.14.0", "retention": "core_v0.14.0"}
"""Options that the chart refuses for older releases."""
_NO_JOB = {"convert"}


def words_of(option: str) -> list[str]:
    namespace = NAMESPACES.get(option, "training")
    objects = rendered(MEGATRON, *OPTIONS[option], namespace=namespace)
    return arguments(only(objects, "PyTorchJob"))


@pytest.mark.parametrize("option", sorted(set(OPTIONS) - _NO_JOB))
def test_megatron_knows_every_argument_of_every_option(option: str) -> None:
    words = words_of(option)
    oldest = RELEASES.index(NEWER.get(option, RELEASES[0]))
    for release in RELEASES[oldest:]:
        assert complaints(words, release) == []


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


def test_a_custom_shape_is_really_used() -> None:
    words = dict(pairs(words_of("llama")))
    assert words["--num-layers"] == ["32"]
    assert words["--hidden-size"] == ["4096"]
    assert words["--num-query-groups"] == ["8"]
    assert "--swiglu" in words
