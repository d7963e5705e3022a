{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* Devices and variables of the network, by kind. On EFA, NCCL's plugin chooses them. */ -}}

{{- define "megatron.environment" -}}
{{- $v := .Values -}}
{{- $e := list (list "CUDA_DEVICE_MAX_CONNECTIONS" "1") (list "PYTHONPATH" $v.image.workingDir) (list "NCCL_DEBUG" $v.network.debug) (list "TRITON_CACHE_DIR" "/tmp/triton") -}}
{{- if eq $v.network.kind "infiniband" -}}
{{- $e = concat $e (list (list "CUDA_DEVICE_ORDER" "PCI_BUS_ID") (list "NCCL_IB_PCI_RELAXED_ORDERING" "1") (list "NCCL_IB_QPS_PER_CONNECTION" "4") (list "NCCL_IGNORE_CPU_AFFINITY" "1")) -}}
{{- $e = concat $e (list (list "NCCL_MIN_NCHANNELS" "32") (list "NCCL_P2P_NET_CHUNKSIZE" "524288") (list "NCCL_PXN_DISABLE" "1") (list "UCX_TLS" "rc") (list "UCX_NET_DEVICES" "mlx5_ib0:1")) -}}
{{- if $v.network.sharp -}}
{{- $e = concat $e (list (list "NCCL_COLLNET_ENABLE" "1") (list "SHARP_COLL_ENABLE_SAT" "1") (list "SHARP_COLL_LOG_LEVEL" "3") (list "SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING" "1") (list "SHARP_SMX_UCX_INTERFACE" "mlx5_ib0:1")) -}}
{{- end -}}
{{- else if eq $v.network.kind "efa" -}}
{{- $e = concat $e (list (list "FI_EFA_USE_HUGE_PAGE" "0") (list "PYTORCH_CUDA_ALLOC_CONF" "expandable_segments:True")) -}}
{{- end -}}
{{- with $v.network.socketInterface }}{{ $e = append $e (list "NCCL_SOCKET_IFNAME" .) }}{{ end -}}
{{- with $v.network.topologyFile }}{{ $e = append $e (list "NCCL_TOPO_FILE" .) }}{{ end -}}
{{- range $name, $value := $v.training.extraEnvironment }}{{ $e = append $e (list $name (toString $value)) }}{{ end -}}
{{- range $e }}
- name: {{ index . 0 }}
  value: {{ index . 1 | quote }}
{{- end -}}
{{- end -}}

{{- define "megatron.resources" -}}
{{- /* Requests and limits are equal, as Kubernetes requires for devices. */ -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $r := dict -}}
{{- if $v.cluster.gpuResource }}{{ $_ := set $r $v.cluster.gpuResource (int64 $v.training.gpusPerNode) }}{{ end -}}
{{- if eq $v.network.kind "infiniband" }}{{ $_ := set $r $v.network.rdmaResource (int64 $v.training.gpusPerNode) }}{{ end -}}
{{- if and (eq $v.network.kind "efa") (gt (int64 $p.efa) 0) }}{{ $_ := set $r "vpc.amazonaws.com/efa" (int64 $p.efa) }}{{ end -}}
{{- with $v.resources.cpu }}{{ $_ := set $r "cpu" (toString .) }}{{ end -}}
{{- with $v.resources.memory }}{{ $_ := set $r "memory" (toString .) }}{{ end -}}
{{- if $r -}}
requests: {{- toYaml $r | nindent 2 }}
limits: {{- toYaml $r | nindent 2 }}
{{- else -}}
{}
{{- end -}}
{{- end -}}
