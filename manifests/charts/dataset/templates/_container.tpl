{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "dataset.container" -}}
{{- $values := .root.Values -}}
- name: {{ .step.name }}
  image: {{ include "dataset.image" .root | quote }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  command: [python3, -m, dataset_steps, {{ .step.name }}, /scripts/dataset_steps/settings.json]
  env:
    - {name: PYTHONPATH, value: /scripts}
    - {name: PYTHONDONTWRITEBYTECODE, value: "1"}
    - {name: PYTHONUNBUFFERED, value: "1"}
    {{- if eq .step.name "convert" }}
    - {name: HF_HOME, value: /tmp/huggingface}
    {{- end }}
    {{- if and $values.hub.tokenSecret.name (has .step.name (list "download" "convert")) }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ $values.hub.tokenSecret.name }}
          key: {{ $values.hub.tokenSecret.key }}
    {{- end }}
  securityContext:
    allowPrivilegeEscalation: false
  resources:
    {{- toYaml (index $values.resources .step.resources) | nindent 4 }}
  volumeMounts:
    - name: data
      mountPath: {{ $values.storage.data.mountPath }}
    - name: steps
      mountPath: /scripts/dataset_steps
      readOnly: true
    {{- if has .step.name (list "convert" "preprocess") }}
    - name: shm
      mountPath: /dev/shm
    {{- end }}
{{- end }}
