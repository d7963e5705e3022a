{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* The same as "mwatch inject" adds; a test compares the two. */}}
{{- /* Starts the wrapper, or the command alone if that cannot be done; functions and positional
parameters only, because envsubst would replace a variable. */ -}}
{{- define "mwatch.launch" -}}
{{- $source := "/etc/mwatch-run/mwatch-run.pyz" -}}
{{- $missing := "no wrapper, because the namespace has no ConfigMap mwatch-run" -}}
{{- $copy := printf `"$1" -c 'import shutil, sys; shutil.copyfile(*sys.argv[1:])' %s "$2" 2>/dev/null && ` $source -}}
{{- if eq .Values.mwatch.wrapper "image" -}}
{{- $source = "/mwatch/mwatch-run.pyz" -}}
{{- $missing = printf "no wrapper at %s" $source -}}
{{- $copy = "" -}}
{{- end -}}
alone() { echo "mwatch: not watched: $1; the command runs alone" >&2; { { echo "$1"; printenv
MWATCH_RESTART_POLICY; } >/mwatch/unwatched; mkfifo -m 666 /mwatch/running; } 2>/dev/null; [ -p /mwatch/running
] && command exec 9<>/mwatch/running; while [ "$1" != -- ]; do shift; done; shift; exec "$@"; }; wrap() { "$1"
-c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || return 0; {{ $copy }}"$1" "$2" --version
>/dev/null 2>&1 && exec "$@"; alone "the wrapper {{ $source }} is damaged or cannot be copied" "$@"; }; [ -r {{ $source }} ]
|| alone "{{ $missing }}" "$@"; wrap python3 /mwatch/mwatch-run.pyz "$@"; wrap python /mwatch/mwatch-run.pyz "$@";
alone "the image has no Python 3.8 or newer" "$@"
{{- end -}}

{{- define "mwatch.prefix" -}}
- /bin/sh
- -c
- >-
  {{- include "mwatch.launch" . | nindent 2 }}
- mwatch-run
{{- if eq .Values.mwatch.mode "act" }}
- --grace
- {{ max 1 (sub (int .Values.resources.gracePeriodSeconds) 5) | quote }}
{{- end }}
- --
{{- end }}

{{- define "mwatch.runVariable" -}}
valueFrom: {fieldRef: {fieldPath: "metadata.labels['training.kubeflow.org/job-name']"}}
{{- end }}

{{- define "mwatch.environment" -}}
- name: MWATCH_RESTART_POLICY
  value: {{ ternary "Never" .Values.job.restartPolicy (eq .Values.job.restartPolicy "ExitCode") }}
- name: MWATCH_DIR
  value: /mwatch
- name: MWATCH_MODE
  value: {{ .Values.mwatch.mode }}
- name: MWATCH_JOB
  {{- include "mwatch.runVariable" . | nindent 2 }}
- name: MWATCH_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: MWATCH_POD
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: MWATCH_CONTROLLER
  value: {{ .Values.mwatch.controller | quote }}
- name: MWATCH_TOKEN_FILE
  value: /etc/mwatch/token
{{- end }}

{{- define "mwatch.mounts" -}}
- name: mwatch
  mountPath: /mwatch
{{- if and .isTrainer (eq .root.Values.mwatch.wrapper "configmap") }}
- name: mwatch-run
  mountPath: /etc/mwatch-run
  readOnly: true
{{- end }}
- name: mwatch-token
  mountPath: /etc/mwatch
  readOnly: true
{{- end }}

{{- define "mwatch.volumes" -}}
- name: mwatch
  emptyDir: {sizeLimit: 2Gi}
{{- if eq .Values.mwatch.wrapper "configmap" }}
- name: mwatch-run
  configMap:
    name: mwatch-run
    optional: true
{{- end }}
- name: mwatch-token
  secret:
    secretName: mwatch-{{ .Release.Name }}
    optional: true
{{- end }}

{{- define "mwatch.resources" -}}
{{- if and .root.Values.resources.cpu .root.Values.resources.memory -}}
requests: {cpu: 250m, memory: 512Mi}
limits: {cpu: 250m, memory: 512Mi}
{{- else -}}
requests: {cpu: {{ .cpu }}, memory: {{ .memory }}}
limits: {memory: 512Mi}
{{- end -}}
{{- end }}

{{- define "mwatch.copy" -}}
- name: mwatch-copy
  image: {{ .Values.mwatch.image | quote }}
  imagePullPolicy: IfNotPresent
  command: [cp, /mwatch-run.pyz, /mwatch/mwatch-run.pyz]
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
  resources:
    {{- include "mwatch.resources" (dict "root" . "cpu" "50m" "memory" "64Mi") | nindent 4 }}
  volumeMounts:
    - name: mwatch
      mountPath: /mwatch
{{- end }}

{{/* "save": the save folder; "mount": its volume and mount path. */}}
{{- define "mwatch.sidecar" -}}
{{- $root := .root -}}
- name: mwatch
  image: {{ $root.Values.mwatch.image | quote }}
  imagePullPolicy: IfNotPresent
  {{- if eq $root.Values.mwatch.sidecar "native" }}
  restartPolicy: Always
  {{- end }}
  command: [mwatch, sidecar]
  env:
    - name: MWATCH_DIR
      value: /mwatch
    - name: MWATCH_RUN
      {{- include "mwatch.runVariable" $root | nindent 6 }}
    - name: MWATCH_POD
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: MWATCH_POD_UID
      valueFrom: {fieldRef: {fieldPath: metadata.uid}}
    - name: MWATCH_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
    - name: MWATCH_NODE
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
    - name: MWATCH_PORT
      value: "9401"
    - name: MWATCH_MODE
      value: {{ $root.Values.mwatch.mode }}
    - name: MWATCH_TOKEN_FILE
      value: /etc/mwatch/token
    {{- if eq $root.Values.mwatch.sidecar "container" }}
    - name: MWATCH_UNTIL_FINAL
      value: "true"
    {{- end }}
    - name: MWATCH_SAVE
      value: {{ .save | quote }}
  ports:
    - name: mwatch
      containerPort: 9401
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
  resources:
    {{- include "mwatch.resources" (dict "root" $root "cpu" "100m" "memory" "256Mi") | nindent 4 }}
  volumeMounts:
    {{- include "mwatch.mounts" (dict "root" $root "isTrainer" false) | nindent 4 }}
    - name: {{ .mount.name }}
      mountPath: {{ .mount.mountPath }}
      readOnly: true
{{- end }}

{{- /* The first pod's Service, which the operator takes as its own: pods meet although the image of a
sidecar cannot be pulled. `mwatch inject` writes the same (sidecar/mwatch/manifests/services.py). */ -}}
{{- define "mwatch.service" -}}
{{- $labels := dict "training.kubeflow.org/operator-name" "pytorchjob-controller" "training.kubeflow.org/job-name" .name "training.kubeflow.org/replica-type" "master" "training.kubeflow.org/replica-index" "0" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}-master-0
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- toYaml $labels | nindent 4 }}
    group-name: kubeflow.org
    job-name: {{ .name | quote }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- toYaml $labels | nindent 4 }}
  ports:
    - {name: pytorchjob-port, port: 23456}
{{- end }}
