# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests render of the chart megatron-training: every size on every platform, and every
option at least once."""

from __future__ import annotations

from support.repository.chart_renders import MEGATRON, sets, values_file

PLATFORMS = ("generic", "aks", "eks", "hyperpod")
LEAST_GPUS = {
    "175b": 128, "30b": 32, "13b": 8, "1.3b": 2, "857m": 1, "375m": 1, "125m": 1,
    "1.7B": 1, "3.6B": 2, "7.5B": 4, "18.4B": 8, "39.1B": 16, "76.1B": 32, "145.6B": 64,
    "310.1B": 128, "345m": 1, "gpt2-large": 1, "gpt2-xl": 1,
}  # fmt: skip
_ON_40_GB = {"18.4B", "39.1B", "76.1B", "145.6B", "310.1B"}
"""Too large for 40 GB in their smallest layout: on twice the nodes replicas share the optimizer."""

LLAMA = sets(
    "model.size=custom", "model.numLayers=32", "model.hiddenSize=4096",
    "model.numAttentionHeads=32", "model.seqLength=4096", "model.ffnHiddenSize=11008",
    "model.architecture=llama", "parallelism.tensor=2",
)  # fmt: skip
BERT = sets(
    "training.script=pretrain_bert.py", "model.size=custom", "model.numLayers=24",
    "model.hiddenSize=1024", "model.numAttentionHeads=16", "model.seqLength=512",
    "tokenizer.type=BertWordPieceLowerCase", 'dataset.prefixes=["/data/wiki_text_sentence"]',
)  # fmt: skip
T5 = sets(
    "training.script=pretrain_t5.py", "model.size=custom", "model.numLayers=12",
    "model.hiddenSize=768", "model.numAttentionHeads=12", "model.seqLength=512",
    "tokenizer.type=BertWordPieceCase", 'dataset.prefixes=["/data/wiki_text_sentence"]',
)  # fmt: skip
CONTINUED = [*values_file("eks"), "-f", str(MEGATRON / "values-continued.yaml")]
OPTIONS: dict[str, list[str]] = {
    "benchmark": sets("training.benchmark=true"),
    "samples": sets("training.iterations=null", "training.samples=1000000"),
    "fp16": sets("training.precision=fp16"),
    "fp8": sets("training.precision=fp8"),
    "experts": sets("moe.experts=8", "parallelism.expert=4", "moe.ffnHiddenSize=2048"),
    "experts with TP": sets("moe.experts=8", "parallelism.expert=2", "parallelism.tensor=2"),
    "context": sets("parallelism.context=2"),
    "no overlap": sets("parallelism.overlap=false", "parallelism.distributedOptimizer=false"),
    "interleaved": sets(
        "model.size=30b", "training.nodes=4", "parallelism.virtualStageLayers=3"
    ),
    "selective": sets("parallelism.recompute=selective"),
    "full": sets("parallelism.recompute=full"),
    "sharp": [*values_file("aks"), *sets("network.sharp=true")],
    "llama": [*LLAMA, *sets("model.numQueryGroups=8", "model.rotaryBase=500000")],
    "bert": BERT,
    "t5": T5,
    "bert of a new release": [*BERT, *sets("image.release=0.19.0")],
    "files": sets("dataset.splitBy=files", "dataset.files=72"),
    "named files": sets('dataset.prefixes=["/data/a_text_document","/data/b_text_document"]'),
    "blend": sets("dataset.argumentsFile=/data/blend.txt"),
    "mock": sets("dataset.source=mock"),
    "none": sets("dataset.source=none"),
    "retention": sets("checkpoints.retainInterval=1000"),
    "no async": sets("checkpoints.async=false", "checkpoints.exitSignalHandler=false"),
    "must exist": sets("checkpoints.mustExist=true"),
    "longer": sets("optimizer.onResume=values"),
    "as before": sets("optimizer.onResume=checkpoint"),
    "continued": CONTINUED,
    "handover": [*CONTINUED, *sets("continued.stage=handover")],
    "convert": [*CONTINUED, *sets("continued.stage=convert")],
    "act": sets("mwatch.mode=act"),
    "native sidecar": sets("mwatch.sidecar=native"),
    "copied wrapper": sets("mwatch.wrapper=image"),
    "unwatched": sets("mwatch.enabled=false"),
    "guaranteed": sets("resources.cpu=96", "resources.memory=200Gi"),
    "user": sets("resources.runAsUser=1000"),
    "exit codes": sets("job.restartPolicy=ExitCode", "mwatch.mode=act"),
    "queue": sets(
        "scheduling.kueueQueue=team", "scheduling.kueuePriorityClass=high",
        "scheduling.topologyRequired=cloud.provider.com/topology-rack",
    ),
    "placement": sets(
        "scheduling.priorityClass=training", "scheduling.affinityKey=topology.kubernetes.io/zone",
        "scheduling.schedulerName=volcano", 'scheduling.nodeSelector={"pool":"gpu"}',
    ),
    "claims": sets("storage.checkpoints.create=true", "storage.data.create=true"),
    "limits": sets(
        "job.ttlSecondsAfterFinished=3600", "job.activeDeadlineSeconds=86400",
        "job.backoffLimit=100", "job.suspend=true",
    ),
    "auto-resume": [*values_file("hyperpod"), *sets("hyperpod.autoResume=true")],
    "policy": sets("mwatch.policy=strict", 'job.annotations={"team":"nlp"}'),
    "annotations": sets("mwatch.scrapeAnnotations=true"),
    "CPUs": sets("cluster.gpuResource=", "training.gpusPerNode=2"),
    "no curves": sets("tensorboard.enabled=false"),
}  # fmt: skip
NAMESPACES = {"auto-resume": "kubeflow"}


def words_for(platform: str, size: str) -> list[str]:
    """The smallest number of nodes of eight GPUs that the size trains on there."""
    nodes = -(-LEAST_GPUS[size] // 8)
    if platform == "eks" and size in _ON_40_GB:
        nodes *= 2
    batch = 16 * 8 * nodes
    return [
        *values_file(platform),
        *sets(f"model.size={size}", f"training.nodes={nodes}", f"training.globalBatchSize={batch}"),
    ]
