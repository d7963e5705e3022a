{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "dataset.labels" -}}
app.kubernetes.io/name: dataset
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "dataset.image" -}}
{{- $usual := "megatron-lm:core_v0.16.1" -}}
{{- if eq .Values.source "c4-mds" -}}
{{- $usual = "ghcr.io/azure/ai-infrastructure-on-azure/llm-foundry:latest" -}}
{{- else if eq .Values.preprocess.engine "mwatch" -}}
{{- $usual = printf "mwatch:%s" .Chart.AppVersion -}}
{{- end -}}
{{- $parts := splitList ":" $usual -}}
{{ printf "%s:%s" (.Values.image.repository | default (first $parts)) (.Values.image.tag | default (last $parts)) }}
{{- end }}

{{/* The steps, in order; the last one is the container, all others are init containers. */}}
{{- define "dataset.steps" -}}
{{- if eq .Values.source "c4-mds" -}}
- {name: convert, resources: convert}
- {name: count-mds, resources: count}
{{- else -}}
- {name: download, resources: download}
- {name: extract, resources: extract}
- {name: concatenate, resources: concatenate}
- {name: preprocess, resources: preprocess}
- {name: count, resources: count}
{{- end -}}
{{- end }}

{{/* Origin of each source. */}}
{{- define "dataset.files" -}}
{{- if eq .Values.source "slimpajama" -}}
- hub: cerebras/SlimPajama-627B
  folders: [{{ range $number := untilStep 1 11 1 }}{{ if gt $number 1 }}, {{ end }}train/chunk{{ $number }}{{ end }}]
  ending: .jsonl.zst
{{- else if eq .Values.source "oscar" -}}
- url: {{ .Values.hub.endpoint }}/bigscience/misc-test-data/resolve/{{ .Values.hub.revision }}/stas/oscar-1GB.jsonl.xz
{{- else if eq .Values.source "openwebtext-10k" -}}
- url: https://cdn-datasets.huggingface.co/nlp/datasets/openwebtext/openwebtext-10k.tar.xz
{{- else -}}
{{ toYaml .Values.files }}
{{- end -}}
{{- end }}

{{- define "dataset.settings" -}}
{{- $values := .Values -}}
{{- $sample := eq $values.amount "sample" -}}
{{- $retry := $values.retry -}}
{{- $tokenizer := dict -}}
{{- with $values.tokenizer.vocabUrl }}{{- $_ := set $tokenizer "vocab.json" . }}{{- end -}}
{{- with $values.tokenizer.mergesUrl }}{{- $_ := set $tokenizer "merges.txt" . }}{{- end -}}
{{- $settings := dict "source" $values.source "name" ($values.name | default $values.source) "root" $values.storage.data.mountPath "endpoint" $values.hub.endpoint "revision" $values.hub.revision "workers" $values.workers "keepIntermediate" $values.keepIntermediate "retry" $retry "parallelism" $values.parallelism -}}
{{- if eq $values.source "c4-mds" -}}
{{- $splits := $values.mds.splits | default (ternary (list "train_small" "val_small") (list "train" "val") $sample) -}}
{{- $_ := set $settings "mds" (merge (dict "splits" $splits) $values.mds) -}}
{{- else -}}
{{- $_ := set $settings "files" (include "dataset.files" . | fromYamlArray) -}}
{{- $_ := set $settings "sample" (ternary $values.sampleFiles 0 (and $sample (eq $values.source "slimpajama"))) -}}
{{- $_ := set $settings "perOutput" ($values.filesPerOutput | default (ternary 10 1200 $sample)) -}}
{{- $_ := set $settings "tokenizer" $tokenizer -}}
{{- $_ := set $settings "preprocess" $values.preprocess -}}
{{- end -}}
{{ toPrettyJson $settings }}
{{- end }}
