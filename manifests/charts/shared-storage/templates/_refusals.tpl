{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Rejects values that cannot work, before anything costs money. */}}
{{- define "storage.refuse" -}}
{{- $values := .Values -}}
{{- $claims := include "storage.claims" . | fromYamlArray -}}
{{- if and (eq $values.storage.data.claim $values.storage.checkpoints.claim) (ne $values.storage.data.kind $values.storage.checkpoints.kind) -}}
{{- fail (printf "storage.data and storage.checkpoints share the claim %q, so their kinds cannot differ (%s and %s): give them two names, or one kind" $values.storage.data.claim $values.storage.data.kind $values.storage.checkpoints.kind) -}}
{{- end -}}
{{- $static := 0 -}}
{{- $root := . -}}
{{- range $claims -}}
{{- if include "storage.isStatic" (dict "root" $root "claim" .) -}}{{- $static = add1 $static -}}{{- end -}}
{{- $gib := include "storage.gib" .size | int64 -}}
{{- if eq .kind "azure-lustre" -}}
{{- include "storage.refuseAzureLustre" (dict "values" $values.azureLustre "claim" . "gib" $gib) -}}
{{- else if eq .kind "fsx-lustre" -}}
{{- include "storage.refuseFsx" (dict "values" $values.fsxLustre "claim" . "gib" $gib) -}}
{{- else -}}
{{- include "storage.refuseBlob" (dict "values" $values.azureBlob "claim" .) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $static 2) (eq $values.storage.data.kind $values.storage.checkpoints.kind) -}}
{{- fail (printf "an existing %s serves only one claim: give storage.checkpoints.claim and storage.data.claim the same name" $values.storage.data.kind) -}}
{{- end -}}
{{- end }}

{{- define "storage.refuseAzureLustre" -}}
{{- if not .values.existing.mgsAddress -}}
{{- $step := index (dict "40" 48 "125" 16 "250" 8 "500" 4) (.values.sku | splitList "-" | last) | int64 -}}
{{- $tib := div .gib 1024 -}}
{{- if or (ne (mod .gib 1024) 0) (ne (mod $tib $step) 0) -}}
{{- fail (printf "storage.%s.size %s: %s comes in steps of %d TiB; give %dTi" .claim.purpose .claim.size .values.sku $step (max $step (mul (div (add $tib (sub $step 1)) $step) $step))) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "storage.refuseFsx" -}}
{{- $values := .values -}}
{{- $given := list -}}
{{- range $key, $value := $values.existing -}}{{- if $value -}}{{- $given = append $given $key -}}{{- end -}}{{- end -}}
{{- if and $given (ne (len $given) 3) -}}
{{- fail (printf "fsxLustre.existing: an existing file system needs fileSystemId, dnsName and mountName; only %s is given (aws fsx describe-file-systems shows all three)" (join ", " $given)) -}}
{{- end -}}
{{- if not $given -}}
{{- if not $values.subnetId -}}
{{- fail "fsxLustre.subnetId is empty: set the subnet of your nodes, or an existing file system in fsxLustre.existing" -}}
{{- end -}}
{{- if not $values.securityGroupIds -}}
{{- fail "fsxLustre.securityGroupIds is empty: set a group that allows the nodes to reach ports 988 and 1018-1023" -}}
{{- end -}}
{{- if and (eq .claim.purpose "checkpoints") (hasPrefix "SCRATCH" $values.deploymentType) -}}
{{- fail (printf "fsxLustre.deploymentType %s has no replication: a failed file server loses the checkpoints; use PERSISTENT_2" $values.deploymentType) -}}
{{- end -}}
{{- $speeds := index (dict "PERSISTENT_1" "50 100 200" "PERSISTENT_2" "125 250 500 1000" "SCRATCH_2" "") $values.deploymentType -}}
{{- if and $speeds (not (has (toString $values.throughput) (splitList " " $speeds))) -}}
{{- fail (printf "fsxLustre.throughput %v: %s supports %s MB/s per TiB" $values.throughput $values.deploymentType ($speeds | replace " " ", ")) -}}
{{- end -}}
{{- if and (ne .gib 1200) (or (eq .gib 0) (ne (mod .gib 2400) 0)) -}}
{{- fail (printf "storage.%s.size %s: FSx for Lustre has 1200Gi or steps of 2400Gi; give %dGi" .claim.purpose .claim.size (max 1200 (mul (div (add .gib 2399) 2400) 2400))) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "storage.refuseBlob" -}}
{{- if ne (empty .values.existing.storageAccount) (empty .values.existing.container) -}}
{{- fail "azureBlob.existing: an existing container needs both storageAccount and container" -}}
{{- end -}}
{{- end }}
