{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* The same as "mwatch inject" adds; a test compares the two. */}}
{{- define "mwatch.launch" -}}
if [ -r /mwatch/mwatch-run.pyz ]; then for p in python3 python; do "$p" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null && exec "$p" /mwatch/mwatch-run.pyz "$@"; done; fi; while [ "$1" != -- ]; do shift; done; shift; echo "mwatch: no Python 3.8 and no wrapper here: the command runs unwatched" >&2; exec "$@"
{{- end }}

{{- define "mwatch.prefix" -}}
- /bin/sh
- -c
- {{ include "mwatch.launch" . | quote }}
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
- name: mwatch-token
  mountPath: /etc/mwatch
  readOnly: true
{{- end }}

{{- define "mwatch.volumes" -}}
- name: mwatch
  emptyDir: {sizeLimit: 2Gi}
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
  resources:
    {{- include "mwatch.resources" (dict "root" $root "cpu" "100m" "memory" "256Mi") | nindent 4 }}
  volumeMounts:
    {{- include "mwatch.mounts" $root | nindent 4 }}
    - name: {{ .mount.name }}
      mountPath: {{ .mount.mountPath }}
      readOnly: true
{{- end }}
