{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "foundry.environment" -}}
- {name: RUN_NAME, value: {{ .Release.Name | quote }}}
- {name: NCCL_DEBUG, value: {{ .Values.network.debug | quote }}}
- {name: CUDA_DEVICE_ORDER, value: PCI_BUS_ID}
{{- with .Values.network.socketInterface }}
- {name: NCCL_SOCKET_IFNAME, value: {{ . | quote }}}
{{- end }}
{{- if eq .Values.network.kind "infiniband" }}
- {name: NCCL_IB_PCI_RELAXED_ORDERING, value: "1"}
- {name: NCCL_IB_QPS_PER_CONNECTION, value: "4"}
- {name: NCCL_IGNORE_CPU_AFFINITY, value: "1"}
- {name: NCCL_MIN_NCHANNELS, value: "32"}
- {name: NCCL_P2P_NET_CHUNKSIZE, value: "524288"}
- {name: NCCL_PXN_DISABLE, value: "1"}
- {name: UCX_TLS, value: rc}
- {name: UCX_NET_DEVICES, value: "mlx5_ib0:1"}
{{- with .Values.network.topologyFile }}
- {name: NCCL_TOPO_FILE, value: {{ . | quote }}}
{{- end }}
{{- if .Values.network.sharp }}
- {name: NCCL_COLLNET_ENABLE, value: "1"}
- {name: SHARP_SMX_UCX_INTERFACE, value: "mlx5_ib0:1"}
- {name: SHARP_COLL_ENABLE_SAT, value: "1"}
- {name: SHARP_COLL_LOG_LEVEL, value: "3"}
- {name: SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING, value: "1"}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.extraEnvironment }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- end }}

{{- define "foundry.devices" -}}
{{ .Values.cluster.gpuResource }}: {{ .Values.training.gpusPerNode }}
{{- if eq .Values.network.kind "infiniband" }}
{{ .Values.network.rdmaResource }}: {{ .Values.training.gpusPerNode }}
{{- end }}
{{- with .Values.resources.cpu }}
cpu: {{ . | quote }}
{{- end }}
{{- with .Values.resources.memory }}
memory: {{ . | quote }}
{{- end }}
{{- end }}

{{/* The volume of the checkpoints: that of the data if both share a claim. */}}
{{- define "foundry.saveMount" -}}
{{- $storage := .Values.storage -}}
{{- $data := dict "name" "data" "mountPath" $storage.data.mountPath -}}
{{- $own := dict "name" "checkpoints" "mountPath" $storage.checkpoints.mountPath -}}
{{- $isShared := eq $storage.data.claim $storage.checkpoints.claim -}}
{{- $isOnData := hasPrefix (printf "%s/" $storage.data.mountPath) (include "foundry.saveFolder" .) -}}
{{ toJson (ternary $data $own (or $isShared $isOnData)) }}
{{- end }}

{{/* No shell: Composer, or the wrapper, is process 1, and its exit code is that of the container. The
kubelet substitutes the operator's rank and address in the arguments. */}}
{{- define "foundry.container" -}}
- name: pytorch
  image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  workingDir: {{ .Values.image.scripts }}
  command:
    {{- if .Values.mwatch.enabled }}
    {{- include "mwatch.prefix" . | nindent 4 }}
    {{- end }}
    - composer
    - --world_size
    - {{ mul (int .Values.training.nodes) (int .Values.training.gpusPerNode) | quote }}
    - --node_rank
    - $(RANK)
    - --master_addr
    - $(MASTER_ADDR)
    - --master_port
    - $(MASTER_PORT)
    - --nproc
    - {{ .Values.training.gpusPerNode | quote }}
    - --verbose
    - {{ .Values.image.scripts }}/train/train.py
    - {{ include "foundry.config" . }}
    {{- include "foundry.arguments" . | trim | nindent 4 }}
  env:
    {{- include "foundry.environment" . | nindent 4 }}
    {{- if .Values.mwatch.enabled }}
    {{- include "mwatch.environment" . | nindent 4 }}
    {{- end }}
  resources:
    requests:
      {{- include "foundry.devices" . | trim | nindent 6 }}
    limits:
      {{- include "foundry.devices" . | trim | nindent 6 }}
  securityContext:
    capabilities: {add: [IPC_LOCK]}
  volumeMounts:
    - name: data
      mountPath: {{ .Values.storage.data.mountPath }}
    {{- if ne .Values.storage.data.claim .Values.storage.checkpoints.claim }}
    - name: checkpoints
      mountPath: {{ .Values.storage.checkpoints.mountPath }}
    {{- end }}
    - name: shm
      mountPath: /dev/shm
    {{- if .Values.mwatch.enabled }}
    {{- include "mwatch.mounts" (dict "root" . "isTrainer" true) | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "foundry.pod" -}}
{{- $mwatch := .Values.mwatch -}}
metadata:
  labels:
    {{- include "foundry.labels" . | nindent 4 }}
    {{- if $mwatch.enabled }}
    mwatch.dev/watch: "true"
    {{- end }}
  {{- if and $mwatch.enabled $mwatch.scrapeAnnotations }}
  annotations:
    prometheus.io/scrape: "true"
    prometheus.io/port: "9401"
    prometheus.io/path: /metrics
  {{- end }}
spec:
  terminationGracePeriodSeconds: {{ .Values.resources.gracePeriodSeconds }}
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with .Values.scheduling.priorityClass }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" }}
  {{- with index $.Values.scheduling $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- $sidecar := include "mwatch.sidecar" (dict "root" . "save" (include "foundry.saveFolder" .) "mount" (include "foundry.saveMount" . | fromJson)) }}
  {{- $isCopied := and $mwatch.enabled (eq $mwatch.wrapper "image") }}
  {{- $isNative := and $mwatch.enabled (eq $mwatch.sidecar "native") }}
  {{- if or $isCopied $isNative }}
  initContainers:
    {{- if $isCopied }}
    {{- include "mwatch.copy" . | nindent 4 }}
    {{- end }}
    {{- if $isNative }}
    {{- $sidecar | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    {{- include "foundry.container" . | nindent 4 }}
    {{- if and $mwatch.enabled (eq $mwatch.sidecar "container") }}
    {{- $sidecar | nindent 4 }}
    {{- end }}
  volumes:
    - name: data
      persistentVolumeClaim:
        claimName: {{ .Values.storage.data.claim }}
    {{- if ne .Values.storage.data.claim .Values.storage.checkpoints.claim }}
    - name: checkpoints
      persistentVolumeClaim:
        claimName: {{ .Values.storage.checkpoints.claim }}
    {{- end }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .Values.storage.sharedMemory }}}
    {{- if $mwatch.enabled }}
    {{- include "mwatch.volumes" . | nindent 4 }}
    {{- end }}
{{- end }}
