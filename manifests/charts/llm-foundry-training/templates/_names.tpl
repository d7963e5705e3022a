{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "foundry.labels" -}}
app.kubernetes.io/name: llm-foundry-training
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "foundry.saveFolder" -}}
{{ .Values.checkpoints.folder | default (printf "%s/%s" .Values.storage.checkpoints.mountPath .Release.Name) }}
{{- end }}

{{- define "foundry.config" -}}
{{- if hasPrefix "/" .Values.model.config -}}{{ .Values.model.config }}
{{- else -}}{{ .Values.image.scripts }}/train/yamls/pretrain/{{ .Values.model.config }}.yaml
{{- end -}}
{{- end }}

{{/* Shapes in LLM-Foundry's YAML files: layers, width, vocabulary, global batch. */}}
{{- define "foundry.shapes" -}}
mpt-125m: {layers: 12, width: 768, batch: 256}
mpt-350m: {layers: 24, width: 1024, batch: 256}
mpt-760m: {layers: 24, width: 1536, batch: 256}
mpt-1b: {layers: 24, width: 2048, batch: 512}
mpt-3b: {layers: 32, width: 2560, batch: 512}
mpt-7b: {layers: 32, width: 4096, batch: 1024}
mpt-13b: {layers: 40, width: 5120, batch: 1024}
mpt-30b: {layers: 48, width: 7168, batch: 2048}
mpt-70b: {layers: 80, width: 8192, batch: 2048}
{{- end }}

{{/* One argument of Composer. Numbers as JSON: "%v" would print a million as 1e+06. */}}
{{- define "foundry.word" -}}
{{- $value := .value -}}
{{- if kindIs "string" $value -}}{{ printf "%s=%s" .key $value }}
{{- else -}}{{ printf "%s=%s" .key (toJson $value) }}
{{- end -}}
{{- end }}

{{/* Nested updates become dotted keys. As a YAML list. */}}
{{- define "foundry.updates" -}}
{{- $above := .above -}}
{{- range $key, $value := .tree -}}
{{- $path := ternary (printf "%s.%s" $above $key) $key (ne $above "") -}}
{{- if and (kindIs "map" $value) $value -}}
{{- include "foundry.updates" (dict "above" $path "tree" $value) -}}
{{- else }}
- {{ include "foundry.word" (dict "key" $path "value" $value) | quote }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* All arguments after the YAML file; later ones win. */}}
{{- define "foundry.arguments" -}}
{{- $values := .Values -}}
- {{ printf "run_name=%s" .Release.Name | quote }}
- {{ printf "save_folder=%s" (include "foundry.saveFolder" .) | quote }}
- {{ printf "save_interval=%s" $values.checkpoints.interval | quote }}
- {{ printf "save_num_checkpoints_to_keep=%d" (int $values.checkpoints.keep) | quote }}
- "autoresume=true"
- {{ printf "fsdp_config.state_dict_type=%s" $values.checkpoints.stateDict | quote }}
- {{ printf "dist_timeout=%d" (int $values.training.distTimeoutSeconds) | quote }}
- {{ printf "variables.data_remote=%s" $values.data.remote | quote }}
- {{ printf "variables.data_local=%s" $values.data.local | quote }}
- {{ printf "train_loader.dataset.split=%s" $values.data.trainSplit | quote }}
- {{ printf "eval_loader.dataset.split=%s" $values.data.evalSplit | quote }}
{{- with $values.training.globalBatchSize }}
- {{ printf "global_train_batch_size=%d" (int .) | quote }}
{{- end }}
{{- with $values.training.maxDuration }}
- {{ printf "max_duration=%s" . | quote }}
{{- end }}
{{- include "foundry.updates" (dict "above" "" "tree" $values.yamlUpdates) }}
{{- end }}
