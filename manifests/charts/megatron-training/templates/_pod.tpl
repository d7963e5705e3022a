{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* The pod template, the same for the master and the workers. */ -}}

{{- define "megatron.pod" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
metadata:
  labels:
    {{- include "megatron.labels" . | nindent 4 }}
    {{- if $p.isWatched }}
    mwatch.dev/watch: "true"
    {{- end }}
  {{- $isScraped := and $p.isWatched $v.mwatch.scrapeAnnotations }}
  {{- if or $v.scheduling.topologyRequired $v.scheduling.topologyPreferred $isScraped }}
  annotations:
    {{- if $isScraped }}
    prometheus.io/scrape: "true"
    prometheus.io/port: "9401"
    prometheus.io/path: /metrics
    {{- end }}
    {{- with $v.scheduling.topologyRequired }}
    kueue.x-k8s.io/podset-required-topology: {{ . }}
    {{- end }}
    {{- with $v.scheduling.topologyPreferred }}
    kueue.x-k8s.io/podset-preferred-topology: {{ . }}
    {{- end }}
  {{- end }}
spec:
  terminationGracePeriodSeconds: {{ int64 $v.resources.gracePeriodSeconds }}
  {{- with $v.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.scheduling.priorityClass }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $v.scheduling.schedulerName }}
  schedulerName: {{ . }}
  {{- end }}
  {{- with include "megatron.where" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- $isCopied := and $p.isWatched (eq $v.mwatch.wrapper "image") }}
  {{- $isNative := and $p.isWatched (eq $v.mwatch.sidecar "native") }}
  {{- if or $isCopied $isNative (include "megatron.hasPreparation" .) }}
  initContainers:
    {{- if $isCopied }}
    - {{ include "mwatch.copy" . | nindent 6 | trim }}
    {{- end }}
    {{- if $isNative }}
    - {{ include "mwatch.sidecar" . | nindent 6 | trim }}
    {{- end }}
    {{- if include "megatron.hasPreparation" . }}
    - {{ include "megatron.preparation" . | nindent 6 | trim }}
    {{- end }}
  {{- end }}
  containers:
    - {{ include "megatron.trainer" . | nindent 6 | trim }}
    {{- if and $p.isWatched (eq $v.mwatch.sidecar "container") }}
    - {{ include "mwatch.sidecar" . | nindent 6 | trim }}
    {{- end }}
  volumes:
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $v.storage.sharedMemory }}}
    {{- if eq $p.dataVolume "data" }}
    - name: data
      persistentVolumeClaim: {claimName: {{ $v.storage.data.claim }}}
    {{- end }}
    - name: checkpoints
      persistentVolumeClaim: {claimName: {{ $v.storage.checkpoints.claim }}}
    {{- if include "megatron.hasPreparation" . }}
    - name: training
      emptyDir: {sizeLimit: 64Mi}
    - name: scripts
      configMap: {name: {{ $p.name }}-scripts}
    {{- end }}
    {{- if $p.isWatched }}
    - name: mwatch
      emptyDir: {sizeLimit: 2Gi}
    {{- if eq $v.mwatch.wrapper "configmap" }}
    - name: mwatch-run
      configMap: {name: mwatch-run, optional: true}
    {{- end }}
    - name: mwatch-token
      secret: {secretName: mwatch-{{ $p.name }}, optional: true}
    {{- end }}
{{- end -}}

{{- define "megatron.hasPreparation" -}}
{{- $stage := and .Values.continued.enabled (eq .Values.continued.stage "train") -}}
{{- if or .plan.hasData $stage .plan.mustExist }}true{{ end -}}
{{- end -}}

{{- define "megatron.where" -}}
{{- include "megatron.nodes" . }}
{{- with .Values.scheduling.affinityKey }}
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: {{ . }}
        labelSelector:
          matchLabels: {training.kubeflow.org/job-name: {{ $.plan.name }}}
{{- end }}
{{- end -}}

{{- define "megatron.nodes" -}}
{{- $v := .Values -}}
{{- $selector := deepCopy $v.scheduling.nodeSelector -}}
{{- with $v.cluster.instanceType }}{{ $selector = merge $selector (dict "node.kubernetes.io/instance-type" .) }}{{ end -}}
{{- if eq $v.cluster.platform "hyperpod" }}{{ $selector = merge $selector (dict "sagemaker.amazonaws.com/node-health-status" "Schedulable") }}{{ end -}}
{{- if $selector }}
nodeSelector: {{- toYaml $selector | nindent 2 }}
{{- end }}
{{- with $v.scheduling.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "megatron.trainer" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
name: pytorch
image: {{ $p.image }}
imagePullPolicy: {{ $v.image.pullPolicy }}
workingDir: {{ $v.image.workingDir }}
command:
  {{- if $p.isWatched }}
  {{- include "mwatch.prefix" . | nindent 2 }}
  {{- end }}
  {{- include "megatron.launcher" . | nindent 2 }}
args:
  {{- include "megatron.arguments" . | nindent 2 }}
env:
  {{- include "megatron.environment" . | trim | nindent 2 }}
  {{- if $p.isWatched }}
  {{- include "mwatch.trainerVariables" . | nindent 2 }}
  {{- end }}
resources: {{- include "megatron.resources" . | nindent 2 }}
securityContext:
  {{- with $v.resources.runAsUser }}
  runAsUser: {{ int64 . }}
  {{- end }}
  allowPrivilegeEscalation: false
  {{- if ne $v.network.kind "tcp" }}
  capabilities: {add: [IPC_LOCK]}
  {{- end }}
volumeMounts:
  - {name: shm, mountPath: /dev/shm}
  - {name: {{ $p.dataVolume }}, mountPath: {{ $v.storage.data.mountPath }}}
  - {name: checkpoints, mountPath: {{ $v.storage.checkpoints.mountPath }}}
  {{- if include "megatron.hasPreparation" . }}
  - {name: training, mountPath: /training, readOnly: true}
  {{- end }}
  {{- if $p.isWatched }}
  - {name: mwatch, mountPath: /mwatch}
  {{- if eq $v.mwatch.wrapper "configmap" }}
  - {name: mwatch-run, mountPath: /etc/mwatch-run, readOnly: true}
  {{- end }}
  - {name: mwatch-token, mountPath: /etc/mwatch, readOnly: true}
  {{- end }}
{{- end -}}

{{- define "megatron.preparation" -}}
{{- /* Checks the data files before the trainer starts, and reports what is missing. */ -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
name: data
image: {{ $p.image }}
imagePullPolicy: {{ $v.image.pullPolicy }}
command: [python3, /scripts/data.py]
env:
  {{- if and $p.hasData (not $p.isHandover) }}
  - {name: DATA_FOLDER, value: {{ $p.dataFolder | quote }}}
  - {name: DATA_PREFIXES, value: {{ join " " $v.dataset.prefixes | quote }}}
  - {name: DATA_ARGUMENTS_FILE, value: {{ $v.dataset.argumentsFile | quote }}}
  - {name: SPLIT_BY, value: {{ ternary "fraction" $v.dataset.splitBy $v.training.benchmark }}}
  - {name: VALIDATION_FILES, value: {{ int64 $v.dataset.validationFiles | quote }}}
  - {name: TEST_FILES, value: {{ int64 $v.dataset.testFiles | quote }}}
  {{- if eq $p.family "other" }}
  {{- else if $v.tokenizer.model }}
  - {name: TOKENIZER_FILES, value: {{ ternary $v.tokenizer.model "" (hasPrefix "/" $v.tokenizer.model) | quote }}}
  {{- else }}
  - {name: TOKENIZER_FILES, value: {{ ternary (printf "%s %s" $p.vocab $p.merges) $p.vocab (eq $v.tokenizer.type "GPT2BPETokenizer") | quote }}}
  {{- end }}
  {{- end }}
  {{- if and $v.continued.enabled (eq $v.continued.stage "train") }}
  - {name: BASE_CHECKPOINT, value: {{ $p.converted | quote }}}
  - {name: CHECKPOINTS, value: {{ $p.save | quote }}}
  {{- end }}
  {{- if $p.mustExist }}
  - {name: MUST_EXIST, value: {{ $p.save | quote }}}
  {{- end }}
  - {name: OUT, value: /training}
resources:
  requests: {cpu: 500m, memory: 512Mi}
  limits: {cpu: 500m, memory: 512Mi}
securityContext:
  {{- with $v.resources.runAsUser }}
  runAsUser: {{ int64 . }}
  {{- end }}
  allowPrivilegeEscalation: false
volumeMounts:
  - {name: {{ $p.dataVolume }}, mountPath: {{ $v.storage.data.mountPath }}, readOnly: true}
  - {name: checkpoints, mountPath: {{ $v.storage.checkpoints.mountPath }}, readOnly: true}
  - {name: training, mountPath: /training}
  - {name: scripts, mountPath: /scripts, readOnly: true}
{{- end -}}
