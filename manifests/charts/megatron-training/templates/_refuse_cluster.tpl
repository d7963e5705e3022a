{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* Rejects more values that cannot work: nodes and memory, folders, the job, a base model. */ -}}

{{- define "megatron.refuseNode" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- if and $p.node.gpus (gt (int64 $v.training.gpusPerNode) (int64 $p.node.gpus)) -}}
{{- fail (printf "training.gpusPerNode %d is more than the %d of %s" (int64 $v.training.gpusPerNode) (int64 $p.node.gpus) $v.cluster.instanceType) -}}
{{- end -}}
{{- $isAws := has $v.cluster.platform (list "eks" "hyperpod") -}}
{{- if or (and $isAws (eq $v.network.kind "infiniband")) (and (eq $v.cluster.platform "aks") (eq $v.network.kind "efa")) -}}
{{- fail (printf "there is no %s on %s: set network.kind=%s, or tcp" $v.network.kind $v.cluster.platform (ternary "efa" "infiniband" $isAws)) -}}
{{- end -}}
{{- if and (eq $v.network.kind "infiniband") (hasKey $p.node "infiniband") (not $p.node.infiniband) -}}
{{- fail (printf "%s has no InfiniBand: set network.kind=tcp, network.sharp=false and network.topologyFile to nothing" $v.cluster.instanceType) -}}
{{- end -}}
{{- $hasPrefix := hasPrefix "ml." $v.cluster.instanceType -}}
{{- if and $v.cluster.instanceType (ne $v.cluster.platform "generic") (ne $hasPrefix (eq $v.cluster.platform "hyperpod")) -}}
{{- fail (printf "no node of %s has the label %s, so the pods would stay Pending: set cluster.instanceType=%s%s" $v.cluster.platform $v.cluster.instanceType (ternary "" "ml." $hasPrefix) $p.instance) -}}
{{- end -}}
{{- if and $p.instance (not $p.node) (eq $v.network.kind "efa") (kindIs "invalid" $v.network.efaPerNode) -}}
{{- fail (printf "the number of EFA devices of %s is unknown: set network.efaPerNode" $v.cluster.instanceType) -}}
{{- end -}}
{{- if and (eq $v.training.precision "fp8") (hasKey $p.node "fp8") (not $p.node.fp8) -}}
{{- fail (printf "the GPUs of %s have no FP8: set training.precision=bf16" $v.cluster.instanceType) -}}
{{- end -}}
{{- if and $v.network.sharp (ne $v.network.kind "infiniband") -}}
{{- fail (printf "SHARP needs InfiniBand, and network.kind is %s: set network.sharp=false" $v.network.kind) -}}
{{- end -}}
{{- if and $v.network.sharp (semverCompare "<0.13.0" $v.image.release) -}}
{{- fail (printf "SHARP needs Megatron core_v0.13 or newer, and image.release is %s" $v.image.release) -}}
{{- end -}}
{{- if and (eq $v.network.kind "efa") (eq $v.network.socketInterface "eth0") -}}
{{- fail "network.socketInterface eth0 does not exist on these instances: leave it empty" -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseFolders" -}}
{{- /* A folder outside all claims is in the container: it is empty, and lost with the pod. */ -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $data := printf "%s/" (trimSuffix "/" $v.storage.data.mountPath) -}}
{{- $kept := printf "%s/" (trimSuffix "/" $v.storage.checkpoints.mountPath) -}}
{{- range $key, $path := dict "storage.checkpoints.path" $p.save "continued.converted" $p.converted "continued.handover" $p.handover -}}
{{- if not (hasPrefix $kept $path) -}}
{{- fail (printf "%s %s is not below %s, where the claim %s is: it would be lost with its pod" $key $path $kept $v.storage.checkpoints.claim) -}}
{{- end -}}
{{- end -}}
{{- $read := dict "dataset.path" (list $v.dataset.path) "dataset.argumentsFile" (list $v.dataset.argumentsFile) "dataset.prefixes" $v.dataset.prefixes "continued.base" (list $v.continued.base) -}}
{{- range $key, $paths := $read -}}
{{- range $paths -}}
{{- if and . (not (hasPrefix $data .)) (not (hasPrefix $kept .)) -}}
{{- fail (printf "%s %s is on none of the volumes: they are at %s and %s" $key . $data $kept) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "megatron.parameters" -}}
{{- /* Parameters in millions, dense and of experts. Attention 2h^2 (1 + groups/heads), feed-forward 2 or 3 h x F. */ -}}
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
{{- /* Weights 2, gradients 4, optimizer 12 bytes, the last divided among replicas. Activations are not counted. */ -}}
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
{{- /* CUDA and NCCL use 5 % before the first tensor. */ -}}
{{- if gt $needed (mulf 0.95 $there) -}}
{{- fail (printf "weights, gradients and optimizer alone take %.0f GiB of each GPU, and those of %s have %.0f GiB: raise parallelism.tensor or parallelism.pipeline, or training.nodes with the distributed optimizer" $needed $v.cluster.instanceType $there) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseJob" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- if eq (trimSuffix "/" $v.storage.data.mountPath) (trimSuffix "/" $v.storage.checkpoints.mountPath) -}}
{{- fail (printf "storage.data.mountPath and storage.checkpoints.mountPath are both %s: use two paths, which may mount the same claim" $v.storage.data.mountPath) -}}
{{- end -}}
{{- if and (not (kindIs "invalid" $v.job.backoffLimit)) (lt (int64 $v.job.backoffLimit) (int64 $v.training.nodes)) -}}
{{- fail (printf "job.backoffLimit %d is less than the %d pods: restarts are summed over all of them, so one restart of the gang would fail the job" (int64 $v.job.backoffLimit) (int64 $v.training.nodes)) -}}
{{- end -}}
{{- if and (has $v.job.restartPolicy (list "ExitCode")) (not (and $v.mwatch.enabled (eq $v.mwatch.mode "act"))) -}}
{{- fail "job.restartPolicy ExitCode fails the job at the first error, because torchrun exits with 1 for every error: use OnFailure, or mwatch.mode=act, whose wrapper distinguishes exit codes" -}}
{{- end -}}
{{- if and $v.hyperpod.autoResume $v.mwatch.enabled (eq $v.mwatch.mode "act") -}}
{{- fail "HyperPod's auto-resume and mwatch would both restart this job: set hyperpod.autoResume=false, or mwatch.mode=observe" -}}
{{- end -}}
{{- if and $v.hyperpod.autoResume (ne $v.cluster.platform "hyperpod") -}}
{{- fail (printf "hyperpod.autoResume needs cluster.platform hyperpod, and it is %s" $v.cluster.platform) -}}
{{- end -}}
{{- if and $v.hyperpod.autoResume (not (regexMatch "^(kubeflow$|hyperpod)" .Release.Namespace)) -}}
{{- fail (printf "HyperPod resumes jobs only in the namespace kubeflow and in those that start with hyperpod, and this is %s" .Release.Namespace) -}}
{{- end -}}
{{- if and (eq $v.mwatch.sidecar "native") $v.mwatch.enabled (semverCompare "<1.29.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "Kubernetes %s does not support native sidecars: set mwatch.sidecar=container" .Capabilities.KubeVersion.Version) -}}
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
{{- fail (printf "Megatron %s no longer has a converter for these models: convert with an image of core_v0.17" $v.image.release) -}}
{{- end -}}
{{- if and (eq $v.continued.stage "convert") (semverCompare ">=0.16.0, <0.17.0" $v.image.release) -}}
{{- fail (printf "the converter of Megatron %s fails with an AttributeError (apply_layernorm_1p): convert with an image of core_v0.17" $v.image.release) -}}
{{- end -}}
{{- if not $v.tokenizer.model -}}
{{- fail "continued pre-training keeps the base model's tokenizer: set tokenizer.model and tokenizer.type" -}}
{{- end -}}
{{- if and (not (hasPrefix "llama2" $v.continued.modelSize)) (not $v.model.rotaryBase) -}}
{{- fail (printf "%s has its own rotary base, without which the weights are useless: set model.rotaryBase to rope_theta of its config.json" $v.continued.modelSize) -}}
{{- end -}}
{{- if ne $v.model.architecture "llama" -}}
{{- fail "the converter supports Llama models only: set model.architecture=llama" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseTwice" -}}
{{- /* If a flag occurs twice, Megatron silently uses the last, and mwatch shows the first. */ -}}
{{- $written := get (include "megatron.argumentsWritten" . | fromYaml) "words" -}}
{{- range .Values.training.extraArguments -}}
{{- $flag := regexReplaceAll "=.*$" (toString .) "" -}}
{{- if and (hasPrefix "--" $flag) (has $flag $written) -}}
{{- fail (printf "training.extraArguments contains %s, which the chart sets itself: change the corresponding value" $flag) -}}
{{- end -}}
{{- end -}}
{{- end -}}
