{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* The same parts as `mwatch inject` adds to a pod; a test compares the two. */ -}}

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
{{- $grace := max 1 (sub (int64 .Values.resources.gracePeriodSeconds) 5) -}}
- /bin/sh
- -c
- >-
  {{- include "mwatch.launch" . | nindent 2 }}
- mwatch-run
{{- if eq .Values.mwatch.mode "act" }}
- --grace
- {{ $grace | quote }}
{{- end }}
- --
{{- end -}}

{{- define "mwatch.field" -}}
- name: {{ index . 0 }}
  valueFrom:
    fieldRef:
      fieldPath: {{ index . 1 }}
{{- end -}}

{{- define "mwatch.trainerVariables" -}}
{{- $policy := .Values.job.restartPolicy -}}
- name: MWATCH_RESTART_POLICY
  value: {{ ternary "Never" $policy (eq $policy "ExitCode") }}
- name: MWATCH_DIR
  value: /mwatch
- name: MWATCH_MODE
  value: {{ .Values.mwatch.mode }}
{{ include "mwatch.field" (list "MWATCH_JOB" "metadata.labels['training.kubeflow.org/job-name']") }}
{{ include "mwatch.field" (list "MWATCH_NAMESPACE" "metadata.namespace") }}
{{ include "mwatch.field" (list "MWATCH_POD" "metadata.name") }}
- name: MWATCH_CONTROLLER
  value: {{ .Values.mwatch.controller }}
- name: MWATCH_TOKEN_FILE
  value: /etc/mwatch/token
{{- end -}}

{{- define "mwatch.rights" -}}
securityContext:
  {{- with .Values.resources.runAsUser }}
  runAsUser: {{ int64 . }}
  {{- end }}
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
{{- end -}}

{{- define "mwatch.resources" -}}
{{- if .plan.isGuaranteed -}}
requests: {cpu: 250m, memory: 512Mi}
limits: {cpu: 250m, memory: 512Mi}
{{- else -}}
requests: {{ .request }}
limits: {memory: 512Mi}
{{- end }}
{{- end -}}

{{- define "mwatch.copy" -}}
name: mwatch-copy
image: {{ .Values.mwatch.image }}
imagePullPolicy: IfNotPresent
command: [cp, /mwatch-run.pyz, /mwatch/mwatch-run.pyz]
{{ include "mwatch.rights" . }}
resources: {{- include "mwatch.resources" (dict "plan" .plan "request" "{cpu: 50m, memory: 64Mi}") | nindent 2 }}
volumeMounts:
  - {name: mwatch, mountPath: /mwatch}
{{- end -}}

{{- define "mwatch.sidecar" -}}
{{- $isNative := eq .Values.mwatch.sidecar "native" -}}
name: mwatch
image: {{ .Values.mwatch.image }}
imagePullPolicy: IfNotPresent
{{- if $isNative }}
restartPolicy: Always
{{- end }}
command: [mwatch, sidecar]
env:
  - name: MWATCH_DIR
    value: /mwatch
  {{- include "mwatch.field" (list "MWATCH_RUN" "metadata.labels['training.kubeflow.org/job-name']") | nindent 2 }}
  {{- include "mwatch.field" (list "MWATCH_POD" "metadata.name") | nindent 2 }}
  {{- include "mwatch.field" (list "MWATCH_POD_UID" "metadata.uid") | nindent 2 }}
  {{- include "mwatch.field" (list "MWATCH_NAMESPACE" "metadata.namespace") | nindent 2 }}
  {{- include "mwatch.field" (list "MWATCH_NODE" "spec.nodeName") | nindent 2 }}
  - name: MWATCH_PORT
    value: "9401"
  - name: MWATCH_MODE
    value: {{ .Values.mwatch.mode }}
  - name: MWATCH_TOKEN_FILE
    value: /etc/mwatch/token
  {{- if not $isNative }}
  - name: MWATCH_UNTIL_FINAL
    value: "true"
  {{- end }}
  - name: MWATCH_SAVE
    value: {{ .plan.save }}
ports:
  - {name: mwatch, containerPort: 9401}
{{ include "mwatch.rights" . }}
resources: {{- include "mwatch.resources" (dict "plan" .plan "request" "{cpu: 100m, memory: 256Mi}") | nindent 2 }}
volumeMounts:
  - {name: mwatch, mountPath: /mwatch}
  - {name: mwatch-token, mountPath: /etc/mwatch, readOnly: true}
  - {name: checkpoints, mountPath: {{ .Values.storage.checkpoints.mountPath }}, readOnly: true}
{{- end -}}

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
