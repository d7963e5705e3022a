# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch plan` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from mwatch.cli.program import program
from mwatch.errors import InputError
from mwatch.model.machines import MACHINES
from mwatch.plan.shape import PRESETS
from support.repository.json_schema import read_json

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "manifests" / "charts" / "megatron-training"
AKS = ["--instance", "Standard_ND96isr_H100_v5"]


def run(*argv: str) -> tuple[int, str]:
    done = CliRunner().invoke(program(), ["plan", *argv])
    if isinstance(done.exception, InputError):
        raise done.exception
    return done.exit_code, done.output


def as_json(*argv: str) -> Any:
    return read_json(run(*argv, "--json")[1], "plan")


def test_help_has_an_example() -> None:
    code, output = run("--help")
    assert code == 0
    assert "mwatch plan 175b --instance" in " ".join(output.split())


def test_the_plan_of_the_documents_largest_run() -> None:
    code, output = run("175b", *AKS, "--nodes", "64")
    assert code == 0
    for words in ("174.61 B", "global batch 8192", "checkpoint 2.22 TiB, 14 bytes a parameter"):
        assert words in output
    assert "amlfs-40 480 TiB" in output
    assert "Megatron would print: weight and optimizer=" in output
    assert output.splitlines()[-1] == "it works"


def test_the_defaults_of_the_document_cannot_work_and_it_is_stated_what_would() -> None:
    code, output = run("175b", *AKS, "--nodes", "2", "--tp", "8", "--pp", "16")
    assert code == 1
    assert "16 GPUs are not divisible by TP 8 x PP 16 x CP 1 = 128" in output
    assert "would work: 6 such machines with TP" in output


def test_a_layout_that_works_is_named_where_the_given_one_does_not() -> None:
    found = as_json("13b", "--instance", "p4d.24xlarge", "--nodes", "2", "--tp", "1", "--pp", "1")
    assert found["works"] is False
    assert found["problems"][0]["check"] == "memory"
    other = found["would_work"]
    code, _ = run(
        "13b", "--instance", "p4d.24xlarge", "--nodes", "2", "--tp", str(other["tensor"]),
        "--pp", str(other["pipeline"]), "--micro-batch", str(other["micro_batch"]),
    )  # fmt: skip
    assert code == 0


def test_json_has_every_stage_and_adds_up() -> None:
    found = as_json("30b", *AKS, "--nodes", "4", "--tp", "4", "--pp", "8")
    stages = found["memory_bytes"]["stages"]
    assert [each["stage"] for each in stages] == list(range(8))
    parts = ("weights", "gradients", "optimizer", "activations", "loss", "allocator", "runtime")
    assert all(each["total"] == pytest.approx(sum(each[part] for part in parts)) for each in stages)
    layout = found["layout"]
    assert layout["data"] * layout["tensor"] * layout["pipeline"] == 32
    assert layout["gradient_accumulation"] * layout["micro_batch"] * layout["data"] == 512
    assert found["step_seconds_is_estimate"] is True
    assert found["saves"][0]["background"]["interval_steps"] >= 1


def test_a_cluster_may_be_given_by_numbers_and_then_no_step_is_guessed() -> None:
    found = as_json("1.3b", "--gpus", "4", "--gpu-memory", "48", "--nodes", "2")
    assert found["cluster"]["instance"] is None
    assert found["step_seconds"] is None
    assert found["saves"][0]["waiting"]["interval_steps"] is None


def test_a_measured_step_and_a_known_failure_rate_are_used() -> None:
    found = as_json("1.3b", *AKS, "--step-seconds", "2", "--mtbf", "10", "--storage", "nfs=2.5")
    assert found["step_seconds"] == 2
    assert found["seconds_between_failures"] == 36000
    (save,) = found["saves"]
    assert save["write_seconds"] == pytest.approx(found["checkpoint_bytes"] / 2.5e9)
    waiting = save["waiting"]
    assert waiting["interval_steps"] == round(waiting["interval_seconds"] / 2)


WRONG = [
    (["17b", *AKS], "near it: 175b"),
    (["13b", "--instance", "p5.24xlarge"], "near it: p5"),
    (["13b"], "--instance TYPE"),
    (["--layers", "4", *AKS], "missing: --hidden, --heads, --seq"),
    (["13b", *AKS, "--top-k", "2"], "add --experts"),
    (["13b", *AKS, "--storage", "amlfs-125:4"], "begins at 16 TiB"),
    (["13b", *AKS, "--storage", "disk"], "no storage tier"),
    (["13b", *AKS, "--storage", "nfs=fast"], "is not a size"),
    (["13b", *AKS, "--storage", "nfs=nan"], "is not a size"),
    (["13b", *AKS, "--storage", "amlfs-125:-4"], "is not a size"),
    (["13b", *AKS, "--storage", "=4"], "no storage tier"),
    (["13b", *AKS, "--storage", ""], "no storage tier"),
    (["", *AKS], "there are: 175b"),
    (["13b", "--instance", "abacus"], "there are: g5.8xlarge"),
    (["13b", "--gpus", "8"], "--gpu-memory GIB"),
    (["13b", *AKS, "--gpus", "16"], "more than the 8 of Standard_ND96isr_H100_v5; use --nodes"),
    (
        ["13b", *AKS, "--multi-latent-attention"],
        "the memory of multi-latent attention",
    ),
    (["13b", *AKS, "--mtp-num-layers", "1"], "does not count layers of multi-token prediction"),
    (["13b", *AKS, "--fp8-param-gather"], "counts weights in 16 bits"),
    (["13b", *AKS, "--pipeline-model-parallel-layout", "E"], "use --first-stage-layers"),
    (["mpt-7b", *AKS, "--first-stage-layers", "7"], "FSDP"),
    (["mpt-30b", *AKS, "--tp", "2"], "FSDP"),
    (["mpt-7b", *AKS, "--nodes", "2", "--values", "-"], "no FSDP"),
    (["175b", *AKS, "--values", "-"], "cannot work"),
    (["13b", *AKS, "--values", "/nowhere/at/all.yaml"], "cannot write /nowhere"),
]


@pytest.mark.parametrize(("argv", "words"), WRONG, ids=[" ".join(row[0]) for row in WRONG])
def test_bad_usage_names_the_fix(argv: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words.replace("-", "[-]")):
        run(*argv)


NUMBERS = ["0", "-2", "two", "nan", "inf", "1e400", "99999999999999999999", ""]
FLAGS = ["--tp", "--nodes", "--layers", "--gpu-memory", "--mtbf", "--mfu", "--step-seconds"]
FLAGS += ["--failure-rate", "--global-batch", "--first-stage-layers"]


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("number", NUMBERS)
def test_an_absurd_number_is_refused_in_one_line_that_names_the_flag(
    flag: str, number: str
) -> None:
    code, output = run("13b", *AKS, flag, number)
    assert code == 2
    assert output.splitlines()[-1].startswith(f"Error: Invalid value for '{flag}'")


def test_a_shape_that_no_model_can_have_gets_no_figures_and_no_advice_about_gpus() -> None:
    code, output = run("--layers", "4", "--hidden", "1000", "--heads", "7", "--seq", "128", *AKS)
    assert code == 1
    assert "hidden size 1000 is not divisible by 7 heads" in output
    assert output.splitlines()[-1] == "no layout can work for this shape"
    assert "GiB, stage" not in output and "checkpoint" not in output


def test_a_number_with_countless_divisors_takes_no_time() -> None:
    huge = str(10**9)
    code, output = run("--layers", "4", "--hidden", huge, "--heads", huge, "--groups", "7",
                     "--seq", "128", *AKS)  # fmt: skip
    assert code == 1
    assert "groups that do: 1, 2, 4, 5, 8, 10, 16, 20" in output


def test_what_would_work_keeps_what_was_asked_for() -> None:
    """As little is changed as can be: here the parallel sizes alone."""
    words = ["13b", *AKS, "--nodes", "2", "--tp", "3", "--global-batch", "96", "--micro-batch", "1"]
    words += ["--no-flash-attention", "--recompute", "selective", "--no-distributed-optimizer"]
    other = as_json(*words)["would_work"]
    assert (other["global_batch"], other["micro_batch"], other["recompute"]) == (96, 1, "selective")
    assert other["flash_attention"] is False and other["distributed_optimizer"] is False


def test_uneven_stages_are_planned_where_the_layers_do_not_divide() -> None:
    words = ["--layers", "61", "--hidden", "4096", "--heads", "32", "--seq", "4096", *AKS]
    found = as_json(*words, "--nodes", "4", "--pp", "4")
    assert found["works"] is True
    assert [each["layers"] for each in found["memory_bytes"]["stages"]] == [15, 16, 16, 14]
    code, output = run(*words, "--pp", "4", "--first-stage-layers", "9", "--tp", "1")
    assert code == 1
    assert "fix: --first-stage-layers 15 --last-stage-layers 14" in output


def test_what_megatrons_report_leaves_out_is_stated_beside_it() -> None:
    _, output = run("13b", *AKS, "--tp", "4", "--pp", "1", "--recompute", "none")
    assert "and not count: sequence parallelism" in output
    _, output = run("13b", *AKS, "--tp", "4", "--pp", "1", "--recompute", "selective")
    assert "and not count" not in output


def test_the_list_names_all_presets_machines_and_tiers() -> None:
    code, output = run("--list")
    assert code == 0
    for name in (*PRESETS, *MACHINES, "amlfs-500", "fsx-1000", "blob"):
        assert name in output


def test_values_are_keys_that_the_chart_has(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    code, output = run("30b", *AKS, "--nodes", "4", "--tp", "4", "--pp", "4", "--values", str(path))
    assert code == 0, output
    made = yaml.safe_load(path.read_text("utf-8"))
    known = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    for part, keys in made.items():
        assert set(keys) <= set(known[part]), part
    assert made["model"] == {"size": "30b"}
    assert made["training"] == {
        "nodes": 4, "gpusPerNode": 8, "microBatchSize": made["training"]["microBatchSize"],
        "globalBatchSize": 512,
    }  # fmt: skip
    assert (made["parallelism"]["tensor"], made["parallelism"]["pipeline"]) == (4, 4)
    assert made["cluster"] == {"instanceType": "Standard_ND96isr_H100_v5", "platform": "aks"}
    assert made["network"] == {"kind": "infiniband"}


def test_values_of_a_shape_of_ones_own() -> None:
    code, output = run(
        "--layers", "32", "--hidden", "4096", "--heads", "32", "--seq", "4096", "--groups", "8",
        "--ffn", "14336", "--vocab", "128256", "--llama", "--experts", "8", "--vpp", "2",
        "--pp", "4", "--instance", "p5.48xlarge", "--nodes", "2", "--values", "-",
    )  # fmt: skip
    assert code == 0, output
    made = yaml.safe_load(output)
    assert made["model"]["size"] == "custom"
    assert made["model"]["architecture"] == "llama"
    assert made["moe"]["experts"] == 8
    assert made["parallelism"]["virtualStageLayers"] == 4
    assert made["network"] == {"kind": "efa"}


def test_the_presets_and_machines_of_the_chart_are_ours() -> None:
    theirs = yaml.safe_load((CHART / "files" / "presets.yaml").read_text("utf-8"))
    ours = {name.lower(): each for name, each in PRESETS.items() if each.trainer == "megatron"}
    assert set(theirs) - {"custom"} == set(ours)
    for name, preset in ours.items():
        shape = preset.shape
        assert theirs[name] == {
            "layers": shape.layers, "hidden": shape.hidden, "heads": shape.heads,
            "sequence": shape.sequence, "tensor": preset.tensor, "pipeline": preset.pipeline,
        }  # fmt: skip
    machines = yaml.safe_load((CHART / "files" / "instances.yaml").read_text("utf-8"))
    for name, machine in machines.items():
        assert (MACHINES[name].gpus, MACHINES[name].efa) == (machine["gpus"], machine["efa"])
