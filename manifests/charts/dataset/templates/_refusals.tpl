{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "dataset.refuse" -}}
{{- $values := .Values -}}
{{- if eq $values.name "tokenizer" -}}
{{- fail "name tokenizer is reserved: that folder contains vocabulary and merges" -}}
{{- end -}}
{{- if and (eq $values.source "jsonl") (not $values.files) -}}
{{- fail "source jsonl needs files: set files[].url or files[].path" -}}
{{- end -}}
{{- if and (ne $values.source "jsonl") $values.files -}}
{{- fail (printf "files can be set for source jsonl only; %s has its own" $values.source) -}}
{{- end -}}
{{- range $values.files -}}
{{- if eq (empty .url) (empty .path) -}}
{{- fail "each of files has either a url or a path" -}}
{{- end -}}
{{- if and .path (not (hasPrefix (printf "%s/" $values.storage.data.mountPath) .path)) -}}
{{- fail (printf "files: %s is not under storage.data.mountPath (%s), the only volume that the pods mount" .path $values.storage.data.mountPath) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $values.source "c4-mds") (gt (int $values.parallelism) 1) -}}
{{- fail "parallelism: LLM-Foundry's converter writes one split in one pod; raise mds.workers instead" -}}
{{- end -}}
{{- if and (eq $values.source "c4-mds") (has "train" $values.mds.splits) (eq $values.amount "sample") -}}
{{- fail "mds.splits has train, which is all of C4, and amount is sample: set amount=full, or use train_small" -}}
{{- end -}}
{{- if and (eq $values.source "slimpajama") (eq $values.amount "sample") -}}
{{- $per := $values.filesPerOutput | default 10 | int -}}
{{- $outputs := div (add (int $values.sampleFiles) (sub $per 1)) $per | int -}}
{{- if gt (int $values.parallelism) $outputs -}}
{{- fail (printf "parallelism %d: %d files make %d outputs, so some pods would have nothing to do" (int $values.parallelism) (int $values.sampleFiles) $outputs) -}}
{{- end -}}
{{- end -}}
{{- if and (has $values.source (list "oscar" "openwebtext-10k")) (gt (int $values.parallelism) 1) -}}
{{- fail (printf "parallelism %d: %s is one file" (int $values.parallelism) $values.source) -}}
{{- end -}}
{{- if ne $values.source "c4-mds" -}}
{{- $isBpe := eq $values.preprocess.tokenizerType "GPT2BPETokenizer" -}}
{{- if and $isBpe (ne (empty $values.tokenizer.vocabUrl) (empty $values.tokenizer.mergesUrl)) -}}
{{- fail "tokenizer: GPT2BPETokenizer needs the vocabulary and the merges, of the same model: set both URLs or neither" -}}
{{- end -}}
{{- if and (not $isBpe) (not $values.preprocess.tokenizerModel) -}}
{{- fail (printf "preprocess.tokenizerType %s needs preprocess.tokenizerModel" $values.preprocess.tokenizerType) -}}
{{- end -}}
{{- end -}}
{{- end }}
