{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Names: classes and volumes are cluster-wide, so they contain the namespace. */}}
{{- define "storage.labels" -}}
app.kubernetes.io/name: shared-storage
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "storage.className" -}}
{{ printf "%s-%s-%s" .root.Release.Namespace .root.Release.Name .claim.claim | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Size in GiB, from "16Ti" or "4800Gi"; otherwise 0. */}}
{{- define "storage.gib" -}}
{{- $text := . | toString -}}
{{- if regexMatch "^[1-9][0-9]*Ti$" $text -}}{{ mul (trimSuffix "Ti" $text | int64) 1024 }}
{{- else if regexMatch "^[1-9][0-9]*Gi$" $text -}}{{ trimSuffix "Gi" $text }}
{{- else -}}0{{- end -}}
{{- end }}

{{/* The claims to create, by purpose; if both have one name, only the first. */}}
{{- define "storage.claims" -}}
{{- $storage := .Values.storage -}}
{{- $checkpoints := merge (dict "purpose" "checkpoints" "reclaimPolicy" "Retain") $storage.checkpoints -}}
{{- $claims := list $checkpoints -}}
{{- if and $storage.data.create (ne $storage.data.claim $storage.checkpoints.claim) -}}
{{- $claims = append $claims (merge (dict "purpose" "data") $storage.data) -}}
{{- end -}}
{{ toYaml $claims }}
{{- end }}

{{- define "storage.isStatic" -}}
{{- if and (eq .claim.kind "fsx-lustre") .root.Values.fsxLustre.existing.fileSystemId -}}true
{{- else if and (eq .claim.kind "azure-blob") .root.Values.azureBlob.existing.container -}}true
{{- end -}}
{{- end }}
