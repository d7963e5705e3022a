{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "storage.provisioner" -}}
{{ index (dict "azure-lustre" "azurelustre.csi.azure.com" "azure-blob" "blob.csi.azure.com" "fsx-lustre" "fsx.csi.aws.com") .kind }}
{{- end }}

{{- define "storage.parameters" -}}
{{- $values := .root.Values -}}
{{- if eq .claim.kind "azure-lustre" }}
{{- with $values.azureLustre }}
{{- if .existing.mgsAddress }}
mgs-ip-address: {{ .existing.mgsAddress | quote }}
{{- else }}
sku-name: {{ .sku | quote }}
zone: {{ .zone | quote }}
maintenance-day-of-week: {{ .maintenance.day | quote }}
maintenance-time-of-day-utc: {{ .maintenance.timeUtc | quote }}
{{- end }}
{{- with .parameters }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- else if eq .claim.kind "azure-blob" }}
skuName: {{ $values.azureBlob.sku | quote }}
protocol: fuse2
{{- with $values.azureBlob.parameters }}
{{ toYaml . }}
{{- end }}
{{- else }}
{{- with $values.fsxLustre }}
subnetId: {{ .subnetId | quote }}
securityGroupIds: {{ join "," .securityGroupIds | quote }}
deploymentType: {{ .deploymentType | quote }}
{{- if ne .deploymentType "SCRATCH_2" }}
perUnitStorageThroughput: {{ .throughput | quote }}
{{- end }}
{{- with .parameters }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "storage.mountOptions" -}}
{{- $values := .root.Values -}}
{{- if eq .claim.kind "azure-lustre" -}}
{{ toYaml $values.azureLustre.mountOptions }}
{{- else if eq .claim.kind "fsx-lustre" -}}
{{ toYaml $values.fsxLustre.mountOptions }}
{{- else -}}
{{- $seconds := index $values.azureBlob.cacheSeconds .claim.purpose | int -}}
- "-o allow_other"
- "-o attr_timeout={{ $seconds }}"
- "-o entry_timeout={{ $seconds }}"
- "-o negative_timeout={{ $seconds }}"
- "--use-attr-cache={{ ne $seconds 0 }}"
- "--cancel-list-on-mount-seconds=10"
- "--log-level=LOG_WARNING"
{{- with $values.azureBlob.blockCache }}
{{- if .enabled }}
- "--block-cache"
- "--block-cache-block-size={{ .blockMiB }}"
- "--block-cache-parallelism={{ .parallelism }}"
{{- else }}
- "--file-cache-timeout-in-seconds={{ $seconds }}"
{{- end }}
{{- end }}
{{- with $values.azureBlob.extraMountOptions }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{/* For an existing volume. */}}
{{- define "storage.csi" -}}
driver: {{ include "storage.provisioner" .claim }}
{{- if eq .claim.kind "fsx-lustre" }}
{{- with .root.Values.fsxLustre.existing }}
volumeHandle: {{ .fileSystemId | quote }}
volumeAttributes:
  dnsname: {{ .dnsName | quote }}
  mountname: {{ .mountName | quote }}
{{- end }}
{{- else }}
{{- with .root.Values.azureBlob.existing }}
volumeHandle: {{ printf "%s_%s" .storageAccount .container | quote }}
volumeAttributes:
  storageAccount: {{ .storageAccount | quote }}
  containerName: {{ .container | quote }}
  protocol: fuse2
  {{- with .resourceGroup }}
  resourceGroup: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
