# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What cannot work is refused by `helm template`, with one sentence that names the fix."""

from __future__ import annotations

import pytest

from support.repository.chart_renders import MEGATRON, Refused, rendered, sets, values_file
from support.runs.megatron_runs import BERT, CONTINUED, LLAMA, T5

AKS, EKS, HYPERPOD = (values_file(each) for each in ("aks", "eks", "hyperpod"))
CUSTOM = sets(
    "model.size=custom", "model.numLayers=24", "model.hiddenSize=1024",
    "model.numAttentionHeads=16", "model.seqLength=1024",
)  # fmt: skip
REFUSALS: dict[str, tuple[list[str], str]] = {
    "world size": ([*AKS, *sets("model.size=175b")],
        r"world size 16 \(2 nodes x 8 GPUs\) is not divisible by TP 8 x PP 16 x CP 1 = 128.*"
        r"training.nodes to 16"),
    "batch": (sets("training.globalBatchSize=100"),
        "global batch 100 is not divisible by micro batch 1 x DP 8: set .* a multiple of 8"),
    "heads by TP": (sets("model.size=gpt2-xl", "parallelism.tensor=2"),
        "25 attention heads are not divisible by TP 2"),
    "layers by PP": (sets("model.size=gpt2-large", "parallelism.pipeline=8"),
        "36 layers are not divisible by PP 8"),
    "hidden by heads": ([*CUSTOM, *sets("model.hiddenSize=1000")],
        "hidden size 1000 is not divisible by 16 attention heads"),
    "groups by heads": ([*LLAMA, *sets("model.numQueryGroups=5")],
        "32 attention heads are not divisible by 5 query groups"),
    "groups by TP": ([*LLAMA, *sets("model.numQueryGroups=1")],
        "1 query groups are not divisible by TP"),
    "samples with iterations": (sets("training.samples=1000"),
        "training.samples and training.iterations exclude each other"),
    "neither": (sets("training.iterations=null"), "length of the training is missing"),
    "decay of the other kind": (sets("optimizer.decaySamples=1000"),
        "training.iterations goes with optimizer.decayIterations"),
    "decay of samples": ([*HYPERPOD, *sets("optimizer.decayIterations=10")],
        "training.samples goes with optimizer.decaySamples"),
    "positions": (sets("model.seqLength=4096", "model.maxPositionEmbeddings=2048"),
        "sequence length 4096 is above the 2048 positions"),
    "positions of T5": ([*T5, *sets("model.decoderSeqLength=1024")],
        "decoder's sequence length 1024 is above the 512 positions"),
    "sequence by CP": (sets("parallelism.context=2", "model.seqLength=1022"),
        "sequence length 1022 is not divisible by 2 x CP 2"),
    "sequence by TP": (sets("parallelism.tensor=4", "model.seqLength=1022"),
        "sequence length 1022 is not divisible by TP 4 x CP 1"),
    "files": (sets("dataset.splitBy=files", "dataset.files=30"),
        "dataset.files 30 leaves none to train on: 15 are for validation and 15 for test"),
    "no validation files": (sets("dataset.splitBy=files", "dataset.validationFiles=0"),
        "leaves nothing to evaluate on"),
    "no validation share": (sets("dataset.split=100\\,0\\,0"), "leaves nothing to evaluate on"),
    "evaluation of nothing": (sets("training.evalIterations=0"), "set training.benchmark=true"),
    "files with names": (
        sets("dataset.splitBy=files", 'dataset.prefixes=["/data/a"]'), "is for a folder"),
    "two lists": (sets('dataset.prefixes=["/data/a"]', "dataset.argumentsFile=/data/b"),
        "exclude each other"),
    "incomplete shape": (sets("model.size=custom", "model.numLayers=2"),
        "model.size custom has no"),
    "experts without any": (sets("parallelism.expert=2"), "EP 2 has no experts"),
    "experts by EP": (sets("moe.experts=6", "parallelism.expert=4"),
        "6 experts are not divisible by EP 4"),
    "EP by DP": (sets("moe.experts=16", "parallelism.expert=16"), "EP 16 does not divide DP 8"),
    "experts without sequence parallelism": (
        sets("moe.experts=8", "parallelism.tensor=2", "parallelism.sequence=false"),
        "need sequence parallelism"),
    "topk": (sets("moe.experts=2", "moe.topk=3"), "moe.topk 3 is above the 2 experts"),
    "experts of BERT": ([*BERT, *sets("moe.experts=2")], "has no experts"),
    "data of BERT": ([*BERT, *sets("dataset.prefixes=[]")], "needs named data files"),
    "mock of T5": ([*T5, *sets("dataset.prefixes=[]", "dataset.source=mock")], "mock data"),
    "llama of BERT": ([*BERT, *sets("model.architecture=llama")], "its own architecture"),
    "T5 pipeline": ([*T5, *sets("parallelism.pipeline=2")], "T5 has no pipeline parallelism"),
    "virtual stages": (sets("parallelism.virtualStageLayers=2"), "needs PP above 1"),
    "virtual stages by micro batches": (
        sets("model.size=1.3b", "parallelism.virtualStageLayers=3", "training.globalBatchSize=12"),
        "3 micro batches of a step to divide by PP 2"),
    "GPUs of the node": ([*AKS, *sets("training.gpusPerNode=16")], "more than the 8 of"),
    "unknown EFA": ([*EKS, *sets("cluster.instanceType=p9.huge")], "set network.efaPerNode"),
    "fp8": ([*EKS, *sets("training.precision=fp8")], "have no FP8"),
    "sharp on EFA": ([*EKS, *sets("network.sharp=true")], "SHARP needs InfiniBand"),
    "old sharp": ([*AKS, *sets("network.sharp=true", "image.release=0.12.1")], "core_v0.13"),
    "eth0": ([*EKS, *sets("network.socketInterface=eth0")], "does not exist on these instances"),
    "memory": ([*EKS, *sets("model.size=18.4B", "parallelism.tensor=2")],
        r"take \d+ GiB of each GPU, and those of p4d.24xlarge have 40 GiB"),
    "memory of experts": ([*EKS, *sets("moe.experts=64")], r"take \d+ GiB of each GPU"),
    "retention": (sets("checkpoints.retainInterval=150"), "not a multiple of checkpoints.saveInt"),
    "old retention": (sets("checkpoints.retainInterval=200", "image.release=0.12.1"), "v0.14"),
    "learning rate": (sets("optimizer.minLr=1"), "is above optimizer.lr"),
    "backoff": ([*AKS, *sets("job.backoffLimit=1")], "backoffLimit 1 is less than the 2 pods"),
    "exit codes": (sets("job.restartPolicy=ExitCode"), "torchrun exits with 1 for every error"),
    "two actors": ([*HYPERPOD, *sets("hyperpod.autoResume=true", "mwatch.mode=act")],
        "would both restart this job"),
    "auto-resume elsewhere": ([*EKS, *sets("hyperpod.autoResume=true")], "needs cluster.platform"),
    "auto-resume's namespace": ([*HYPERPOD, *sets("hyperpod.autoResume=true")],
        "start with hyperpod, and this is training"),
    "one mount path": (sets("storage.data.mountPath=/checkpoints"), "are both /checkpoints"),
    "old Kubernetes": (["--kube-version", "1.28.0", *sets("mwatch.sidecar=native")],
        "does not support native sidecars"),
    "two topologies": (
        sets("scheduling.topologyRequired=a", "scheduling.topologyPreferred=b"), "exclude each"),
    "topology without queue": (sets("scheduling.topologyRequired=a"), "scheduling.kueueQueue"),
    "tokenizer": (sets("tokenizer.type=HuggingFaceTokenizer"), "needs tokenizer.model"),
    "continued BERT": ([*BERT, *sets("continued.enabled=true")], "is for pretrain_gpt.py"),
    "no base": ([*CONTINUED, *sets("continued.stage=convert", "continued.base=")], "no base model"),
    "new converter": ([*CONTINUED, *sets("continued.stage=convert", "image.release=0.18.2")],
        "no longer has a converter"),
    "broken converter": ([*CONTINUED, *sets("continued.stage=convert", "image.release=0.16.1")],
        "apply_layernorm_1p.*core_v0.17"),
    "continued without tokenizer": (
        [*CONTINUED, *sets("tokenizer.type=GPT2BPETokenizer", "tokenizer.model=")],
        "keeps the base model's tokenizer"),
    "a base with another rotary base": ([*CONTINUED, *sets("continued.modelSize=llama3")],
        "llama3 has its own rotary base.*set model.rotaryBase"),
    "ffn by TP": (sets("model.ffnHiddenSize=4097", "parallelism.tensor=2"),
        "model.ffnHiddenSize 4097 is not divisible by TP 2"),
    "experts' ffn by TP": (
        sets("moe.experts=8", "moe.ffnHiddenSize=1001", "parallelism.tensor=2"),
        "moe.ffnHiddenSize 1001 is not divisible by TP 2"),
    "nothing to train on": (sets("dataset.split=0\\,98\\,2"), "leaves nothing to train on"),
    "context of BERT": ([*BERT, *sets("parallelism.context=2")], "does not split its sequences"),
    "tokenizer of T5": ([*T5, *sets("tokenizer.type=GPT2BPETokenizer")], "has no mask"),
    "decoder by TP": (
        [*T5, *sets("parallelism.tensor=4", "model.decoderSeqLength=126")],
        "decoder's sequence length 126 is not divisible by TP 4"),
    "no InfiniBand": (
        [*AKS, *sets("cluster.instanceType=Standard_NC24ads_A100_v4", "training.gpusPerNode=1",
            "model.size=345m")], "Standard_NC24ads_A100_v4 has no InfiniBand"),
    "InfiniBand on AWS": ([*EKS, *sets("network.kind=infiniband")],
        "no infiniband on eks: set network.kind=efa"),
    "EFA on Azure": ([*AKS, *sets("network.kind=efa")],
        "no efa on aks: set network.kind=infiniband"),
    "a type of EKS on HyperPod": ([*HYPERPOD, *sets("cluster.instanceType=p5en.48xlarge")],
        "pods would stay Pending: set cluster.instanceType=ml.p5en.48xlarge"),
    "a type of HyperPod on EKS": ([*EKS, *sets("cluster.instanceType=ml.p5.48xlarge")],
        "pods would stay Pending: set cluster.instanceType=p5.48xlarge"),
    "checkpoints on no claim": (sets("storage.checkpoints.path=/elsewhere/gpt"),
        "not below /checkpoints/, where the claim checkpoints is: it would be lost"),
    "hand-over on no claim": ([*CONTINUED, *sets("continued.handover=/tmp/out")],
        "continued.handover /tmp/out is not below /checkpoints/"),
    "data on no claim": (sets('dataset.prefixes=["/date/a"]'),
        "dataset.prefixes /date/a is on none of the volumes"),
    "a folder on no claim": (sets("dataset.path=/other"), "dataset.path /other is on none of"),
    "a flag twice": (sets('training.extraArguments=["--num-layers","5"]'),
        "--num-layers, which the chart sets itself"),
    "a flag twice with =": (sets('training.extraArguments=["--lr=1"]'),
        "--lr, which the chart sets itself"),
    "continued GPT": ([*CONTINUED, *sets("model.architecture=gpt")], "Llama models only"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_in_a_sentence(case: str) -> None:
    words, sentence = REFUSALS[case]
    with pytest.raises(Refused, match=sentence) as refused:
        rendered(MEGATRON, *words)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["1gpt", "Gpt", "a" * 49])
def test_a_name_that_no_job_may_have_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=r"cannot name a PyTorchJob|release name"):
        rendered(MEGATRON, name=name)


MISTAKES = {
    "model.size=7b": "model",
    "model.custom.numLayers=24": "custom",
    "training.nodes=0": "nodes",
    "training.iterations=many": "iterations",
    "training.script=pretrain_gpt": "script",
    "training.gpu=8": "gpu",
    "parallelism.tensor=0": "tensor",
    "mwatch.mode=kill": "mode",
    "mwatch.sidecar=both": "sidecar",
    "storage.pvcName=data": "pvcName",
    "job.restartPolicy=Never": "restartPolicy",
    "cluster.platform=gke": "platform",
    "image.release=main": "release",
    "nonsense=1": "nonsense",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_key_or_value_that_does_not_exist_is_refused_by_the_schema(mistake: str) -> None:
    with pytest.raises(Refused, match=MISTAKES[mistake]) as refused:
        rendered(MEGATRON, *sets(mistake))
    assert "values don't meet the specifications of the schema" in str(refused.value)
