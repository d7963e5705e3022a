{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* Everything derived from the values (names, shape, layout, batch, folders), as one mapping. */ -}}

{{- define "megatron.first" -}}
{{- /* The first value of a list that is set; YAML numbers are floats, so they are converted to integers. */ -}}
{{- range . -}}
{{- if not (kindIs "invalid" .) -}}{{- if kindIs "string" . }}{{ . }}{{ else }}{{ int64 . }}{{ end -}}{{- break -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "megatron.plan" -}}
{{- $v := .Values -}}
{{- $size := lower $v.model.size -}}
{{- $preset := get (.Files.Get "files/presets.yaml" | fromYaml) $size -}}
{{- $type := trimPrefix "ml." $v.cluster.instanceType -}}
{{- $node := get (.Files.Get "files/instances.yaml" | fromYaml) $type | default dict -}}
{{- $name := .Release.Name -}}
{{- $data := trimSuffix "/" $v.storage.data.mountPath -}}
{{- $kept := trimSuffix "/" $v.storage.checkpoints.mountPath -}}
{{- $save := $v.storage.checkpoints.path | default (printf "%s/%s" $kept $name) -}}
{{- $layers := include "megatron.first" (list $v.model.numLayers $preset.layers) -}}
{{- $hidden := include "megatron.first" (list $v.model.hiddenSize $preset.hidden) -}}
{{- $heads := include "megatron.first" (list $v.model.numAttentionHeads $preset.heads) -}}
{{- $sequence := include "megatron.first" (list $v.model.seqLength $preset.sequence) -}}
{{- $tensor := include "megatron.first" (list $v.parallelism.tensor $preset.tensor) | int64 -}}
{{- $pipeline := include "megatron.first" (list $v.parallelism.pipeline $preset.pipeline) | int64 -}}
{{- $context := int64 $v.parallelism.context -}}
{{- $world := mul (int64 $v.training.nodes) (int64 $v.training.gpusPerNode) -}}
{{- $model := mul $tensor $pipeline $context -}}
{{- $script := $v.training.script -}}
{{- $family := ternary "other" "gpt" (hasPrefix "-m " $script) -}}
{{- if regexMatch "pretrain_bert\\.py$" $script }}{{ $family = "bert" }}{{ end -}}
{{- if regexMatch "pretrain_t5\\.py$" $script }}{{ $family = "t5" }}{{ end -}}
{{- if and (eq $script (printf "pretrain_%s.py" $family)) (ne $family "gpt") (semverCompare ">=0.18.0" $v.image.release) -}}
{{- $script = printf "examples/%s/pretrain_%s.py" $family $family -}}
{{- end -}}
{{- $isHandover := and $v.continued.enabled (eq $v.continued.stage "handover") -}}
name: {{ $name }}
size: {{ $size | quote }}
family: {{ $family }}
script: {{ $script | quote }}
layers: {{ $layers }}
hidden: {{ $hidden }}
heads: {{ $heads }}
sequence: {{ $sequence }}
positions: {{ include "megatron.first" (list $v.model.maxPositionEmbeddings $sequence) }}
decoderLayers: {{ include "megatron.first" (list $v.model.decoderLayers $layers) }}
tensor: {{ $tensor }}
pipeline: {{ $pipeline }}
context: {{ $context }}
expert: {{ int64 $v.parallelism.expert }}
model: {{ $model }}
world: {{ $world }}
replicas: {{ div $world $model }}
micro: {{ int64 $v.training.microBatchSize }}
batch: {{ include "megatron.first" (list $v.training.globalBatchSize (mul 16 $world)) }}
isSequenceParallel: {{ and $v.parallelism.sequence (gt $tensor 1) }}
instance: {{ $type | quote }}
node: {{ toJson $node }}
efa: {{ include "megatron.first" (list $v.network.efaPerNode $node.efa 0) }}
save: {{ $save }}
tensorboard: {{ printf "%s/tensorboard" $save }}
cache: {{ printf "%s/cache/%s" $data $name }}
dataFolder: {{ $v.dataset.path | default (printf "%s/%s" $data $v.dataset.source) }}
vocab: {{ $v.tokenizer.vocabFile | default (printf "%s/tokenizer/vocab.%s" $data (ternary "txt" "json" (hasPrefix "Bert" $v.tokenizer.type))) }}
merges: {{ $v.tokenizer.mergeFile | default (printf "%s/tokenizer/merges.txt" $data) }}
converted: {{ $v.continued.converted | default (printf "%s/%s-base" $kept $name) }}
handover: {{ $v.continued.handover | default (printf "%s/%s-handover" $kept $name) }}
image: {{ printf "%s:%s" $v.image.repository $v.image.tag }}
{{- /* A pod must not use one claim in two volumes: the kubelet would wait for the second forever. */}}
dataVolume: {{ ternary "checkpoints" "data" (eq $v.storage.data.claim $v.storage.checkpoints.claim) }}
isHandover: {{ $isHandover }}
mustExist: {{ or $isHandover $v.checkpoints.mustExist }}
hasData: {{ not (has $v.dataset.source (list "mock" "none")) }}
isWatched: {{ and $v.mwatch.enabled (or (not $v.continued.enabled) (eq $v.continued.stage "train")) }}
isGuaranteed: {{ and (not (kindIs "invalid" $v.resources.cpu)) (not (kindIs "invalid" $v.resources.memory)) }}
{{- end -}}

{{- define "megatron.labels" -}}
app.kubernetes.io/name: megatron-training
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}
