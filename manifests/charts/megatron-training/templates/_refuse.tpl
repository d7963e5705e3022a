{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* What cannot work ends here, with one sentence that names the mend, before a GPU is asked for. */ -}}

{{- define "megatron.refuse" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,46}[a-z0-9])?$" $p.name) -}}
{{- fail (printf "the release name %q cannot name a PyTorchJob: begin with a letter, and use at most 48 letters, digits and dashes" $p.name) -}}
{{- end -}}
{{- range $key, $field := dict "layers" "numLayers" "hidden" "hiddenSize" "heads" "numAttentionHeads" "sequence" "seqLength" -}}
{{- if not (get $p $key) -}}{{- fail (printf "model.size custom has no %s: set model.%s" $field $field) -}}{{- end -}}
{{- end -}}
{{- include "megatron.refuseShape" . -}}
{{- include "megatron.refuseLayout" . -}}
{{- include "megatron.refuseBatch" . -}}
{{- include "megatron.refuseExperts" . -}}
{{- include "megatron.refuseData" . -}}
{{- include "megatron.refuseNode" . -}}
{{- include "megatron.refuseMemory" . -}}
{{- include "megatron.refuseJob" . -}}
{{- include "megatron.refuseContinued" . -}}
{{- end -}}

{{- define "megatron.refuseShape" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- if mod (int64 $p.hidden) (int64 $p.heads) -}}
{{- fail (printf "the hidden size %d does not divide by %d attention heads: change one of them" (int64 $p.hidden) (int64 $p.heads)) -}}
{{- end -}}
{{- if mod (int64 $p.heads) (int64 $p.tensor) -}}
{{- fail (printf "%d attention heads do not divide by TP %d: choose another parallelism.tensor" (int64 $p.heads) (int64 $p.tensor)) -}}
{{- end -}}
{{- with $v.model.numQueryGroups -}}
{{- if mod (int64 $p.heads) (int64 .) -}}
{{- fail (printf "%d attention heads do not divide by %d query groups: change model.numQueryGroups" (int64 $p.heads) (int64 .)) -}}
{{- end -}}
{{- if mod (int64 .) (int64 $p.tensor) -}}
{{- fail (printf "%d query groups do not divide by TP %d: choose another parallelism.tensor" (int64 .) (int64 $p.tensor)) -}}
{{- end -}}
{{- end -}}
{{- if gt (int64 $p.sequence) (int64 $p.positions) -}}
{{- fail (printf "the sequence length %d is above the %d positions: raise model.maxPositionEmbeddings" (int64 $p.sequence) (int64 $p.positions)) -}}
{{- end -}}
{{- if and (eq $p.family "t5") (gt (int64 $v.model.decoderSeqLength) (int64 $p.positions)) -}}
{{- fail (printf "the decoder's sequence length %d is above the %d positions: raise model.maxPositionEmbeddings" (int64 $v.model.decoderSeqLength) (int64 $p.positions)) -}}
{{- end -}}
{{- if and (gt (int64 $p.context) 1) (mod (int64 $p.sequence) (mul 2 (int64 $p.context))) -}}
{{- fail (printf "the sequence length %d does not divide by 2 x CP %d: change one of them" (int64 $p.sequence) (int64 $p.context)) -}}
{{- end -}}
{{- if and $p.isSequenceParallel (mod (int64 $p.sequence) (mul (int64 $p.tensor) (int64 $p.context))) -}}
{{- fail (printf "the sequence length %d does not divide by TP %d x CP %d, which sequence parallelism needs: set parallelism.sequence=false or another length" (int64 $p.sequence) (int64 $p.tensor) (int64 $p.context)) -}}
{{- end -}}
{{- if and (eq $v.model.architecture "llama") (has $p.family (list "bert" "t5")) -}}
{{- fail (printf "%s has an architecture of its own: set model.architecture=gpt" $p.script) -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseLayout" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- if mod (int64 $p.world) (int64 $p.model) -}}
{{- $least := div (add (int64 $p.model) (sub (int64 $v.training.gpusPerNode) 1)) (int64 $v.training.gpusPerNode) -}}
{{- fail (printf "the world size %d (%d nodes x %d GPUs) does not divide by TP %d x PP %d x CP %d = %d: %s needs a multiple of %d GPUs, so set training.nodes to %d or choose another layout" (int64 $p.world) (int64 $v.training.nodes) (int64 $v.training.gpusPerNode) (int64 $p.tensor) (int64 $p.pipeline) (int64 $p.context) (int64 $p.model) $v.model.size (int64 $p.model) $least) -}}
{{- end -}}
{{- if and (ne $p.family "t5") (mod (int64 $p.layers) (int64 $p.pipeline)) -}}
{{- fail (printf "%d layers do not divide by PP %d: choose another parallelism.pipeline" (int64 $p.layers) (int64 $p.pipeline)) -}}
{{- end -}}
{{- if and (eq $p.family "t5") (gt (int64 $p.pipeline) 1) -}}
{{- fail (printf "T5 has no pipeline parallelism in Megatron: set parallelism.pipeline=1 instead of %d" (int64 $p.pipeline)) -}}
{{- end -}}
{{- with $v.parallelism.virtualStageLayers -}}
{{- if or (lt (int64 $p.pipeline) 2) (mod (div (int64 $p.layers) (int64 $p.pipeline)) (int64 .)) -}}
{{- fail (printf "parallelism.virtualStageLayers %d needs PP above 1, and %d layers for each of %d stages to divide by it" (int64 .) (div (int64 $p.layers) (int64 $p.pipeline)) (int64 $p.pipeline)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseBatch" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $step := mul (int64 $p.micro) (int64 $p.replicas) -}}
{{- if mod (int64 $p.batch) $step -}}
{{- fail (printf "the global batch %d does not divide by micro batch %d x DP %d: set training.globalBatchSize to a multiple of %d" (int64 $p.batch) (int64 $p.micro) (int64 $p.replicas) $step) -}}
{{- end -}}
{{- with $v.parallelism.virtualStageLayers -}}
{{- if mod (div (int64 $p.batch) $step) (int64 $p.pipeline) -}}
{{- fail (printf "an interleaved pipeline needs the %d micro batches of a step to divide by PP %d: change training.globalBatchSize" (div (int64 $p.batch) $step) (int64 $p.pipeline)) -}}
{{- end -}}
{{- end -}}
{{- if and $v.training.samples $v.training.iterations -}}
{{- fail "training.samples and training.iterations exclude each other: set one of them to null" -}}
{{- end -}}
{{- if not (or $v.training.samples $v.training.iterations) -}}
{{- fail "the length of the training is missing: set training.iterations or training.samples" -}}
{{- end -}}
{{- if and $v.training.samples $v.optimizer.decayIterations -}}
{{- fail "training.samples goes with optimizer.decaySamples, not with optimizer.decayIterations" -}}
{{- end -}}
{{- if and $v.training.iterations $v.optimizer.decaySamples -}}
{{- fail "training.iterations goes with optimizer.decayIterations, not with optimizer.decaySamples" -}}
{{- end -}}
{{- if gt (float64 $v.optimizer.minLr) (float64 $v.optimizer.lr) -}}
{{- fail (printf "optimizer.minLr %v is above optimizer.lr %v" $v.optimizer.minLr $v.optimizer.lr) -}}
{{- end -}}
{{- if and (eq (int64 $v.training.evalIterations) 0) (not $v.training.benchmark) -}}
{{- fail "training.evalIterations 0 leaves an empty validation set, at which Megatron stops: set training.benchmark=true" -}}
{{- end -}}
{{- with $v.checkpoints.retainInterval -}}
{{- if mod (int64 .) (int64 $v.checkpoints.saveInterval) -}}
{{- fail (printf "checkpoints.retainInterval %d is no multiple of checkpoints.saveInterval %d" (int64 .) (int64 $v.checkpoints.saveInterval)) -}}
{{- end -}}
{{- if semverCompare "<0.14.0" $v.image.release -}}
{{- fail (printf "checkpoints.retainInterval needs Megatron core_v0.14 or newer, and image.release is %s" $v.image.release) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseExperts" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $experts := int64 $v.moe.experts -}}
{{- if and (gt (int64 $p.expert) 1) (eq $experts 0) -}}
{{- fail (printf "EP %d has no experts to share out: set moe.experts, or parallelism.expert=1" (int64 $p.expert)) -}}
{{- end -}}
{{- if $experts -}}
{{- if has $p.family (list "bert" "t5") -}}
{{- fail (printf "%s has no experts: set moe.experts=0" $p.script) -}}
{{- end -}}
{{- if mod $experts (int64 $p.expert) -}}
{{- fail (printf "%d experts do not divide by EP %d: change moe.experts or parallelism.expert" $experts (int64 $p.expert)) -}}
{{- end -}}
{{- if mod (mul (int64 $p.replicas) (int64 $p.context)) (int64 $p.expert) -}}
{{- fail (printf "EP %d does not divide DP %d x CP %d, inside which experts are shared out: choose another parallelism.expert" (int64 $p.expert) (int64 $p.replicas) (int64 $p.context)) -}}
{{- end -}}
{{- if and (gt (int64 $p.tensor) 1) (not $v.parallelism.sequence) -}}
{{- fail "experts with TP above 1 need sequence parallelism: set parallelism.sequence=true" -}}
{{- end -}}
{{- if gt (int64 $v.moe.topk) $experts -}}
{{- fail (printf "moe.topk %d is above the %d experts" (int64 $v.moe.topk) $experts) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseData" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $d := $v.dataset -}}
{{- if and $d.prefixes $d.argumentsFile -}}
{{- fail "dataset.prefixes and dataset.argumentsFile exclude each other" -}}
{{- end -}}
{{- if and (has $p.family (list "bert" "t5")) $p.hasData (not $d.prefixes) -}}
{{- fail (printf "%s takes its data by name: set dataset.prefixes to files made with --split-sentences" $p.script) -}}
{{- end -}}
{{- if and (eq $d.source "mock") (has $p.family (list "bert" "t5")) -}}
{{- fail (printf "%s has no made-up data: set dataset.prefixes" $p.script) -}}
{{- end -}}
{{- if and (eq $d.splitBy "files") (or $d.prefixes $d.argumentsFile) -}}
{{- fail "dataset.splitBy files is for a folder: use fraction with dataset.prefixes or dataset.argumentsFile" -}}
{{- end -}}
{{- if and (eq $d.splitBy "files") $p.hasData (not $v.training.benchmark) -}}
{{- $held := add (int64 $d.validationFiles) (int64 $d.testFiles) -}}
{{- if eq (int64 $d.validationFiles) 0 -}}
{{- fail "dataset.validationFiles 0 leaves nothing to evaluate on: set it, or training.benchmark=true" -}}
{{- end -}}
{{- with $d.files -}}
{{- if le (int64 .) $held -}}
{{- fail (printf "dataset.files %d leaves none to train on: %d are for validation and %d for test, so set dataset.validationFiles and dataset.testFiles lower, or dataset.splitBy=fraction" (int64 .) (int64 $d.validationFiles) (int64 $d.testFiles)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq $d.splitBy "fraction") (not $v.training.benchmark) (regexMatch "^[^,]+,0+(\\.0*)?(,|$)" $d.split) -}}
{{- fail (printf "dataset.split %s leaves nothing to evaluate on: give validation a share, or set training.benchmark=true" $d.split) -}}
{{- end -}}
{{- if and (has $v.tokenizer.type (list "HuggingFaceTokenizer" "Llama2Tokenizer" "SentencePieceTokenizer" "GPTSentencePieceTokenizer" "TikTokenizer")) (not $v.tokenizer.model) -}}
{{- fail (printf "%s needs tokenizer.model" $v.tokenizer.type) -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseNode" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- if and $p.node.gpus (gt (int64 $v.training.gpusPerNode) (int64 $p.node.gpus)) -}}
{{- fail (printf "training.gpusPerNode %d is more than the %d of %s" (int64 $v.training.gpusPerNode) (int64 $p.node.gpus) $v.cluster.instanceType) -}}
{{- end -}}
{{- if and $p.instance (not $p.node) (eq $v.network.kind "efa") (kindIs "invalid" $v.network.efaPerNode) -}}
{{- fail (printf "how many EFA devices %s has is not known here: set network.efaPerNode" $v.cluster.instanceType) -}}
{{- end -}}
{{- if and (eq $v.training.precision "fp8") (hasKey $p.node "fp8") (not $p.node.fp8) -}}
{{- fail (printf "the GPUs of %s have no FP8: set training.precision=bf16" $v.cluster.instanceType) -}}
{{- end -}}
{{- if and $v.network.sharp (ne $v.network.kind "infiniband") -}}
{{- fail (printf "SHARP is a part of InfiniBand switches, and network.kind is %s: set network.sharp=false" $v.network.kind) -}}
{{- end -}}
{{- if and $v.network.sharp (semverCompare "<0.13.0" $v.image.release) -}}
{{- fail (printf "SHARP needs Megatron core_v0.13 or newer, and image.release is %s" $v.image.release) -}}
{{- end -}}
{{- if and (eq $v.network.kind "efa") (eq $v.network.socketInterface "eth0") -}}
{{- fail "network.socketInterface eth0 names no interface of these instances: leave it empty" -}}
{{- end -}}
{{- end -}}

{{- define "megatron.parameters" -}}
{{- /* Millions: dense ones and those of experts. Attention 2h^2 (1 + groups/heads), feed-forward 2 or 3 h x F. */ -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $h := float64 $p.hidden -}}
{{- $isGated := eq $v.model.architecture "llama" -}}
{{- $ffn := float64 (include "megatron.first" (list $v.model.ffnHiddenSize (mul 4 (int64 $p.hidden)))) -}}
{{- if and $isGated (not $v.model.ffnHiddenSize) }}{{ $ffn = mulf $ffn 0.6667 }}{{ end -}}
{{- $share := divf (float64 (include "megatron.first" (list $v.model.numQueryGroups $p.heads))) (float64 $p.heads) -}}
{{- $attention := mulf 2.0 $h $h (addf 1.0 $share) -}}
{{- $matrices := ternary 3.0 2.0 $isGated -}}
{{- $layers := float64 $p.layers -}}
{{- if eq $p.family "t5" }}{{ $layers = addf $layers (mulf 1.333 (float64 $p.decoderLayers)) }}{{ end -}}
{{- $experts := float64 $v.moe.experts -}}
{{- $embedding := mulf 50304.0 $h (ternary 2.0 1.0 $isGated) -}}
{{- $dense := addf (mulf $layers (addf $attention (ternary 0.0 (mulf $matrices $h $ffn) (gt $experts 0.0)))) $embedding -}}
{{- $expertFfn := float64 (include "megatron.first" (list $v.moe.ffnHiddenSize (int64 $ffn))) -}}
{{- $sparse := mulf $layers $experts $matrices $h $expertFfn -}}
dense: {{ divf $dense 1000000.0 }}
sparse: {{ divf $sparse 1000000.0 }}
{{- end -}}

{{- define "megatron.refuseMemory" -}}
{{- /* Weights 2, gradients 4, optimizer 12 bytes; the last shared by the replicas. Activations come on top. */ -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- if $p.node.memory -}}
{{- $n := include "megatron.parameters" . | fromYaml -}}
{{- $split := float64 (mul (int64 $p.tensor) (int64 $p.pipeline)) -}}
{{- $replicas := float64 (mul (int64 $p.replicas) (int64 $p.context)) -}}
{{- $dense := mulf (divf $n.dense $split) (addf 6.0 (divf 12.0 (ternary $replicas 1.0 $v.parallelism.distributedOptimizer))) -}}
{{- $shared := divf $replicas (float64 $p.expert) -}}
{{- $sparse := mulf (divf (divf $n.sparse $split) (float64 $p.expert)) (addf 6.0 (divf 12.0 (ternary $shared 1.0 $v.parallelism.distributedOptimizer))) -}}
{{- $needed := divf (addf $dense $sparse) 1073.741824 -}}
{{- $there := divf (float64 $p.node.memory) 1024.0 -}}
{{- /* A twentieth is gone to CUDA and NCCL before the first tensor. */ -}}
{{- if gt $needed (mulf 0.95 $there) -}}
{{- fail (printf "weights, gradients and optimizer alone take %.0f GiB of each GPU, and those of %s have %.0f GiB: raise parallelism.tensor or parallelism.pipeline, or training.nodes with the distributed optimizer" $needed $v.cluster.instanceType $there) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseJob" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- if eq (trimSuffix "/" $v.storage.data.mountPath) (trimSuffix "/" $v.storage.checkpoints.mountPath) -}}
{{- fail (printf "storage.data.mountPath and storage.checkpoints.mountPath are both %s: give them two, which may show one claim" $v.storage.data.mountPath) -}}
{{- end -}}
{{- if and (not (kindIs "invalid" $v.job.backoffLimit)) (lt (int64 $v.job.backoffLimit) (int64 $v.training.nodes)) -}}
{{- fail (printf "job.backoffLimit %d is less than the %d pods: restarts are summed over all of them, so one restart of the gang would fail the job" (int64 $v.job.backoffLimit) (int64 $v.training.nodes)) -}}
{{- end -}}
{{- if and (has $v.job.restartPolicy (list "ExitCode")) (not (and $v.mwatch.enabled (eq $v.mwatch.mode "act"))) -}}
{{- fail "job.restartPolicy ExitCode fails the job at the first error, for torchrun exits 1 for all of them: use OnFailure, or mwatch.mode=act, whose wrapper tells exit codes apart" -}}
{{- end -}}
{{- if and $v.hyperpod.autoResume $v.mwatch.enabled (eq $v.mwatch.mode "act") -}}
{{- fail "HyperPod's auto-resume and mwatch would both restart this job: set hyperpod.autoResume=false, or mwatch.mode=observe" -}}
{{- end -}}
{{- if and $v.hyperpod.autoResume (ne $v.cluster.platform "hyperpod") -}}
{{- fail (printf "hyperpod.autoResume needs cluster.platform hyperpod, and it is %s" $v.cluster.platform) -}}
{{- end -}}
{{- if and $v.hyperpod.autoResume (not (regexMatch "^(kubeflow$|hyperpod)" .Release.Namespace)) -}}
{{- fail (printf "HyperPod resumes jobs in the namespace kubeflow and in those that begin with hyperpod, and this is %s" .Release.Namespace) -}}
{{- end -}}
{{- if and (eq $v.mwatch.sidecar "native") $v.mwatch.enabled (semverCompare "<1.29.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "Kubernetes %s knows no native sidecars: set mwatch.sidecar=container" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and $v.scheduling.topologyRequired $v.scheduling.topologyPreferred -}}
{{- fail "scheduling.topologyRequired and scheduling.topologyPreferred exclude each other" -}}
{{- end -}}
{{- if and (or $v.scheduling.topologyRequired $v.scheduling.topologyPreferred) (not $v.scheduling.kueueQueue) -}}
{{- fail "the topology of Kueue needs its queue: set scheduling.kueueQueue, or use scheduling.affinityKey" -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseContinued" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- if $v.continued.enabled -}}
{{- if ne $p.family "gpt" -}}
{{- fail (printf "continued pre-training is for pretrain_gpt.py, and training.script is %s" $p.script) -}}
{{- end -}}
{{- if and (eq $v.continued.stage "convert") (not $v.continued.base) -}}
{{- fail "there is no base model to convert: set continued.base to its folder" -}}
{{- end -}}
{{- if and (eq $v.continued.stage "convert") (semverCompare ">=0.18.0" $v.image.release) -}}
{{- fail (printf "Megatron %s has no converter for these models any more: convert with an image of core_v0.17 or older" $v.image.release) -}}
{{- end -}}
{{- if not $v.tokenizer.model -}}
{{- fail "continued pre-training keeps the base model's tokenizer: set tokenizer.model and tokenizer.type" -}}
{{- end -}}
{{- if ne $v.model.architecture "llama" -}}
{{- fail "the converter knows models of the llama family: set model.architecture=llama" -}}
{{- end -}}
{{- end -}}
{{- end -}}
