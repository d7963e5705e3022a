{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Rejects values that cannot work, before GPUs are requested. */}}
{{- define "foundry.refuse" -}}
{{- $values := .Values -}}
{{- $world := mul (int $values.training.nodes) (int $values.training.gpusPerNode) -}}
{{- $shape := get (include "foundry.shapes" . | fromYaml) $values.model.config -}}
{{- if and (not $shape) (not (hasPrefix "/" $values.model.config)) -}}
{{- fail (printf "model.config %s: LLM-Foundry has no such file; known are %s, or set the path of your own" $values.model.config (include "foundry.shapes" . | fromYaml | keys | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" .Release.Name) -}}
{{- fail (printf "release name %s: the name of a PyTorchJob starts with a letter and contains only letters, digits and -" .Release.Name) -}}
{{- end -}}
{{- if gt (len .Release.Name) 50 -}}
{{- fail (printf "the release name has %d characters: at most 50 are allowed, because pods and Services add -worker-N" (len .Release.Name)) -}}
{{- end -}}
{{- if and $values.mwatch.enabled (eq $values.mwatch.sidecar "native") (semverCompare "<1.29.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "Kubernetes %s does not support native sidecars: set mwatch.sidecar=container" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- include "foundry.refuseBatch" (dict "values" $values "world" $world "shape" $shape) -}}
{{- include "foundry.refuseMemory" (dict "values" $values "world" $world "shape" $shape) -}}
{{- include "foundry.refuseUpdates" $values -}}
{{- include "foundry.refuseFolders" . -}}
{{- include "foundry.refuseRestarts" $values -}}
{{- end }}

{{- define "foundry.refuseBatch" -}}
{{- $flat := include "foundry.updates" (dict "above" "" "tree" .values.yamlUpdates) | fromYamlArray -}}
{{- $batch := .values.training.globalBatchSize | default (get (.shape | default dict) "batch") | int -}}
{{- range $flat -}}
{{- if hasPrefix "global_train_batch_size=" . -}}{{- $batch = trimPrefix "global_train_batch_size=" . | int -}}{{- end -}}
{{- end -}}
{{- if and $batch (ne (mod $batch .world) 0) -}}
{{- fail (printf "a global batch of %d does not divide among %d GPUs; give training.globalBatchSize %d" $batch .world (mul .world (max 1 (div $batch .world)))) -}}
{{- end -}}
{{- end }}

{{/* FSDP distributes weights, gradients and both moments, 4 bytes each, over all GPUs. */}}
{{- define "foundry.refuseMemory" -}}
{{- if .shape -}}
{{- $parameters := add (mul 12 .shape.layers .shape.width .shape.width) (mul 50368 .shape.width) -}}
{{- $needed := div (mul 16 $parameters) .world -}}
{{- $there := mul (int .values.cluster.gpuMemoryGiB) 1073741824 -}}
{{- if gt $needed (div (mul $there 9) 10) -}}
{{- fail (printf "%s: weights, gradients and optimizer need %d GiB on each of %d GPUs, which have %d; use at least %d GPUs" .values.model.config (div $needed 1073741824) .world (int .values.cluster.gpuMemoryGiB) (add1 (div (mul 16 $parameters) (div (mul $there 9) 10)))) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "foundry.refuseUpdates" -}}
{{- $flat := include "foundry.updates" (dict "above" "" "tree" .yamlUpdates) | fromYamlArray -}}
{{- $fixes := dict "autoresume" "it is on: without it a restart begins anew, or is refused" "save_folder" "use checkpoints.folder" "run_name" "it is the release's name, by which a restart finds its checkpoints" "save_overwrite" "with it autoresume is off" "save_interval" "use checkpoints.interval" "save_num_checkpoints_to_keep" "use checkpoints.keep" "fsdp_config.state_dict_type" "use checkpoints.stateDict" "variables.data_remote" "use data.remote" "variables.data_local" "use data.local" "train_loader.dataset.split" "use data.trainSplit" "eval_loader.dataset.split" "use data.evalSplit" -}}
{{- range $flat -}}
{{- $key := splitList "=" . | first -}}
{{- if hasKey $fixes $key -}}
{{- fail (printf "yamlUpdates: %s cannot be set here: %s" $key (get $fixes $key)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "foundry.refuseFolders" -}}
{{- $values := .Values -}}
{{- $save := include "foundry.saveFolder" . -}}
{{- $mounts := list $values.storage.data.mountPath $values.storage.checkpoints.mountPath -}}
{{- $held := false -}}
{{- range $mounts -}}{{- if hasPrefix (printf "%s/" .) $save -}}{{- $held = true -}}{{- end -}}{{- end -}}
{{- if not $held -}}
{{- fail (printf "checkpoints.folder %s is not on a volume (volumes are at %s): it would be lost with the pod" $save (join " and " $mounts)) -}}
{{- end -}}
{{- if eq $values.data.local $values.data.remote -}}
{{- fail "data.local and data.remote are the same: streaming copies from the one to the other" -}}
{{- end -}}
{{- if and (eq $values.storage.data.claim $values.storage.checkpoints.claim) (ne $values.storage.data.mountPath $values.storage.checkpoints.mountPath) -}}
{{- fail (printf "storage: data and checkpoints share the claim %s, so they have one mountPath: give both %s" $values.storage.data.claim $values.storage.data.mountPath) -}}
{{- end -}}
{{- if and (ne $values.storage.data.claim $values.storage.checkpoints.claim) (eq $values.storage.data.mountPath $values.storage.checkpoints.mountPath) -}}
{{- fail (printf "storage: two claims cannot both be mounted at %s" $values.storage.data.mountPath) -}}
{{- end -}}
{{- end }}

{{- define "foundry.refuseRestarts" -}}
{{- $acts := and .mwatch.enabled (eq .mwatch.mode "act") -}}
{{- if and (eq .job.restartPolicy "ExitCode") (not $acts) -}}
{{- fail "job.restartPolicy ExitCode ends the job at every exit code below 128, and Composer always exits with 1: it needs mwatch.mode act, which maps the codes" -}}
{{- end -}}
{{- if and (not (kindIs "invalid" .job.backoffLimit)) (lt (int .job.backoffLimit) (int .training.nodes)) -}}
{{- fail (printf "job.backoffLimit %d: one restart of all %d pods counts as %d; leave it unset, or use pods x restarts" (int .job.backoffLimit) (int .training.nodes) (int .training.nodes)) -}}
{{- end -}}
{{- end }}
