{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "mwatch.labels" -}}
app.kubernetes.io/part-of: mwatch
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* operator, azure, annotations or none. */}}
{{- define "mwatch.monitoring" -}}
{{- if ne .Values.monitoring.kind "auto" -}}{{ .Values.monitoring.kind }}
{{- else if .Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor" -}}operator
{{- else if .Capabilities.APIVersions.Has "azmonitoring.coreos.com/v1/PodMonitor" -}}azure
{{- else -}}annotations
{{- end -}}
{{- end }}

{{- define "mwatch.rulesForm" -}}
{{- if ne .Values.monitoring.rules.form "auto" -}}{{ .Values.monitoring.rules.form }}
{{- else if .Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PrometheusRule" -}}operator
{{- else -}}none
{{- end -}}
{{- end }}

{{/* A file of manifests/rbac, for this namespace. Cluster-wide objects get the namespace into their
name, so that two releases do not conflict. */}}
{{- define "mwatch.manifest" -}}
{{- $namespace := .root.Release.Namespace -}}
{{- $text := .root.Files.Get (printf "files/rbac/%s" .file) -}}
{{- $text = $text | replace "namespace: training" (printf "namespace: %s" $namespace) -}}
{{- $bodies := list -}}
{{- range splitList "\n---\n" $text -}}
{{- $body := . -}}
{{- if regexMatch "(?m)^kind: (ClusterRole|ClusterRoleBinding|ValidatingAdmissionPolicy|ValidatingAdmissionPolicyBinding)$" $body -}}
{{- $body = regexReplaceAll "(?m)^(  name|  policyName): (mwatch-[a-z-]+)$" $body (printf "${1}: ${2}-%s" $namespace) -}}
{{- end -}}
{{- $bodies = append $bodies $body -}}
{{- end -}}
{{- $text = join "\n---\n" $bodies -}}
{{- $text = $text | replace "kubernetes.io/metadata.name: monitoring" (printf "kubernetes.io/metadata.name: %s" .root.Values.networkPolicy.monitoringNamespace) -}}
{{- $text | replace "resourceNames: [\"mwatch-policy\"]" (printf "resourceNames: %s" (.root.Values.rbac.policies | toJson)) -}}
{{- end }}
