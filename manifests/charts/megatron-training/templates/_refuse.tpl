{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* Rejects values that cannot work, with the reason and the fix, before GPUs are requested. */ -}}

{{- define "megatron.refuse" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,46}[a-z0-9])?$" $p.name) -}}
{{- fail (printf "the release name %q cannot name a PyTorchJob: begin with a letter, and use at most 48 letters, digits and dashes" $p.name) -}}
{{- end -}}
{{- range $key, $field := dict "layers" "numLayers" "hidden" "hiddenSize" "heads" "numAttentionHeads" "sequence" "seqLength" -}}
{{- if not (get $p $key) -}}{{- fail (printf "model.size custom has no %s: set model.%s" $field $field) -}}{{- end -}}
{{- end -}}
{{- include "megatron.refuseShape" . -}}
{{- include "megatron.refuseLayout" . -}}
{{- include "megatron.refuseBatch" . -}}
{{- include "megatron.refuseExperts" . -}}
{{- include "megatron.refuseData" . -}}
{{- include "megatron.refuseNode" . -}}
{{- include "megatron.refuseFolders" . -}}
{{- include "megatron.refuseMemory" . -}}
{{- include "megatron.refuseJob" . -}}
{{- include "megatron.refuseContinued" . -}}
{{- include "megatron.refuseTwice" . -}}
{{- end -}}

{{- define "megatron.refuseShape" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- if mod (int64 $p.hidden) (int64 $p.heads) -}}
{{- fail (printf "the hidden size %d is not divisible by %d attention heads: change one of them" (int64 $p.hidden) (int64 $p.heads)) -}}
{{- end -}}
{{- if mod (int64 $p.heads) (int64 $p.tensor) -}}
{{- fail (printf "%d attention heads are not divisible by TP %d: choose another parallelism.tensor" (int64 $p.heads) (int64 $p.tensor)) -}}
{{- end -}}
{{- with $v.model.numQueryGroups -}}
{{- if mod (int64 $p.heads) (int64 .) -}}
{{- fail (printf "%d attention heads are not divisible by %d query groups: change model.numQueryGroups" (int64 $p.heads) (int64 .)) -}}
{{- end -}}
{{- if mod (int64 .) (int64 $p.tensor) -}}
{{- fail (printf "%d query groups are not divisible by TP %d: choose another parallelism.tensor" (int64 .) (int64 $p.tensor)) -}}
{{- end -}}
{{- end -}}
{{- if gt (int64 $p.sequence) (int64 $p.positions) -}}
{{- fail (printf "the sequence length %d is above the %d positions: raise model.maxPositionEmbeddings" (int64 $p.sequence) (int64 $p.positions)) -}}
{{- end -}}
{{- if and (eq $p.family "t5") (gt (int64 $v.model.decoderSeqLength) (int64 $p.positions)) -}}
{{- fail (printf "the decoder's sequence length %d is above the %d positions: raise model.maxPositionEmbeddings" (int64 $v.model.decoderSeqLength) (int64 $p.positions)) -}}
{{- end -}}
{{- if and (gt (int64 $p.context) 1) (mod (int64 $p.sequence) (mul 2 (int64 $p.context))) -}}
{{- fail (printf "the sequence length %d is not divisible by 2 x CP %d: change one of them" (int64 $p.sequence) (int64 $p.context)) -}}
{{- end -}}
{{- if and $p.isSequenceParallel (mod (int64 $p.sequence) (mul (int64 $p.tensor) (int64 $p.context))) -}}
{{- fail (printf "the sequence length %d is not divisible by TP %d x CP %d, which sequence parallelism needs: set parallelism.sequence=false or another length" (int64 $p.sequence) (int64 $p.tensor) (int64 $p.context)) -}}
{{- end -}}
{{- range $key, $width := dict "model.ffnHiddenSize" $v.model.ffnHiddenSize "moe.ffnHiddenSize" $v.moe.ffnHiddenSize -}}
{{- if and $width (mod (int64 $width) (int64 $p.tensor)) -}}
{{- fail (printf "%s %d is not divisible by TP %d: change one of them" $key (int64 $width) (int64 $p.tensor)) -}}
{{- end -}}
{{- end -}}
{{- include "megatron.refuseFamily" . -}}
{{- end -}}

{{- define "megatron.refuseFamily" -}}
{{- /* Limits of pretrain_bert.py and pretrain_t5.py. */ -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- if has $p.family (list "bert" "t5") -}}
{{- if gt (int64 $p.context) 1 -}}
{{- fail (printf "%s does not split its sequences: set parallelism.context=1 instead of %d" $p.script (int64 $p.context)) -}}
{{- end -}}
{{- if eq $v.tokenizer.type "GPT2BPETokenizer" -}}
{{- fail (printf "%s masks words, and GPT2BPETokenizer has no mask: set tokenizer.type=BertWordPieceCase or BertWordPieceLowerCase, and tokenizer.vocabFile" $p.script) -}}
{{- end -}}
{{- if and (eq $p.family "t5") $p.isSequenceParallel (mod (int64 $v.model.decoderSeqLength) (int64 $p.tensor)) -}}
{{- fail (printf "the decoder's sequence length %d is not divisible by TP %d, which sequence parallelism needs: set parallelism.sequence=false or another length" (int64 $v.model.decoderSeqLength) (int64 $p.tensor)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $v.model.architecture "llama") (has $p.family (list "bert" "t5")) -}}
{{- fail (printf "%s has its own architecture: set model.architecture=gpt" $p.script) -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseLayout" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- if mod (int64 $p.world) (int64 $p.model) -}}
{{- $least := div (add (int64 $p.model) (sub (int64 $v.training.gpusPerNode) 1)) (int64 $v.training.gpusPerNode) -}}
{{- fail (printf "the world size %d (%d nodes x %d GPUs) is not divisible by TP %d x PP %d x CP %d = %d: %s needs a multiple of %d GPUs, so set training.nodes to %d or choose another layout" (int64 $p.world) (int64 $v.training.nodes) (int64 $v.training.gpusPerNode) (int64 $p.tensor) (int64 $p.pipeline) (int64 $p.context) (int64 $p.model) $v.model.size (int64 $p.model) $least) -}}
{{- end -}}
{{- $isUneven := or (has "--decoder-first-pipeline-num-layers" $v.training.extraArguments) (has "--decoder-last-pipeline-num-layers" $v.training.extraArguments) -}}
{{- if and (ne $p.family "t5") (not $isUneven) (mod (int64 $p.layers) (int64 $p.pipeline)) -}}
{{- fail (printf "%d layers are not divisible by PP %d: choose another parallelism.pipeline" (int64 $p.layers) (int64 $p.pipeline)) -}}
{{- end -}}
{{- if and (eq $p.family "t5") (gt (int64 $p.pipeline) 1) -}}
{{- fail (printf "T5 has no pipeline parallelism in Megatron: set parallelism.pipeline=1 instead of %d" (int64 $p.pipeline)) -}}
{{- end -}}
{{- with $v.parallelism.virtualStageLayers -}}
{{- if or (lt (int64 $p.pipeline) 2) (mod (div (int64 $p.layers) (int64 $p.pipeline)) (int64 .)) -}}
{{- fail (printf "parallelism.virtualStageLayers %d needs PP above 1, and %d layers for each of %d stages to divide by it" (int64 .) (div (int64 $p.layers) (int64 $p.pipeline)) (int64 $p.pipeline)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseBatch" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $step := mul (int64 $p.micro) (int64 $p.replicas) -}}
{{- if mod (int64 $p.batch) $step -}}
{{- fail (printf "the global batch %d is not divisible by micro batch %d x DP %d: set training.globalBatchSize to a multiple of %d" (int64 $p.batch) (int64 $p.micro) (int64 $p.replicas) $step) -}}
{{- end -}}
{{- with $v.parallelism.virtualStageLayers -}}
{{- if mod (div (int64 $p.batch) $step) (int64 $p.pipeline) -}}
{{- fail (printf "an interleaved pipeline needs the %d micro batches of a step to divide by PP %d: change training.globalBatchSize" (div (int64 $p.batch) $step) (int64 $p.pipeline)) -}}
{{- end -}}
{{- end -}}
{{- if and $v.training.samples $v.training.iterations -}}
{{- fail "training.samples and training.iterations exclude each other: set one of them to null" -}}
{{- end -}}
{{- if not (or $v.training.samples $v.training.iterations) -}}
{{- fail "the length of the training is missing: set training.iterations or training.samples" -}}
{{- end -}}
{{- if and $v.training.samples $v.optimizer.decayIterations -}}
{{- fail "training.samples goes with optimizer.decaySamples, not with optimizer.decayIterations" -}}
{{- end -}}
{{- if and $v.training.iterations $v.optimizer.decaySamples -}}
{{- fail "training.iterations goes with optimizer.decayIterations, not with optimizer.decaySamples" -}}
{{- end -}}
{{- if gt (float64 $v.optimizer.minLr) (float64 $v.optimizer.lr) -}}
{{- fail (printf "optimizer.minLr %v is above optimizer.lr %v" $v.optimizer.minLr $v.optimizer.lr) -}}
{{- end -}}
{{- if and (eq (int64 $v.training.evalIterations) 0) (not $v.training.benchmark) -}}
{{- fail "training.evalIterations 0 leaves an empty validation set, at which Megatron stops: set training.benchmark=true" -}}
{{- end -}}
{{- with $v.checkpoints.retainInterval -}}
{{- if mod (int64 .) (int64 $v.checkpoints.saveInterval) -}}
{{- fail (printf "checkpoints.retainInterval %d is not a multiple of checkpoints.saveInterval %d" (int64 .) (int64 $v.checkpoints.saveInterval)) -}}
{{- end -}}
{{- if semverCompare "<0.14.0" $v.image.release -}}
{{- fail (printf "checkpoints.retainInterval needs Megatron core_v0.14 or newer, and image.release is %s" $v.image.release) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseExperts" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $experts := int64 $v.moe.experts -}}
{{- if and (gt (int64 $p.expert) 1) (eq $experts 0) -}}
{{- fail (printf "EP %d has no experts to distribute: set moe.experts, or parallelism.expert=1" (int64 $p.expert)) -}}
{{- end -}}
{{- if $experts -}}
{{- if has $p.family (list "bert" "t5") -}}
{{- fail (printf "%s has no experts: set moe.experts=0" $p.script) -}}
{{- end -}}
{{- if mod $experts (int64 $p.expert) -}}
{{- fail (printf "%d experts are not divisible by EP %d: change moe.experts or parallelism.expert" $experts (int64 $p.expert)) -}}
{{- end -}}
{{- if mod (mul (int64 $p.replicas) (int64 $p.context)) (int64 $p.expert) -}}
{{- fail (printf "EP %d does not divide DP %d x CP %d, within which experts are distributed: choose another parallelism.expert" (int64 $p.expert) (int64 $p.replicas) (int64 $p.context)) -}}
{{- end -}}
{{- if and (gt (int64 $p.tensor) 1) (not $v.parallelism.sequence) -}}
{{- fail "experts with TP above 1 need sequence parallelism: set parallelism.sequence=true" -}}
{{- end -}}
{{- if gt (int64 $v.moe.topk) $experts -}}
{{- fail (printf "moe.topk %d is above the %d experts" (int64 $v.moe.topk) $experts) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "megatron.refuseData" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $d := $v.dataset -}}
{{- if and $d.prefixes $d.argumentsFile -}}
{{- fail "dataset.prefixes and dataset.argumentsFile exclude each other" -}}
{{- end -}}
{{- if and (has $p.family (list "bert" "t5")) $p.hasData (not $d.prefixes) -}}
{{- fail (printf "%s needs named data files: set dataset.prefixes to files made with --split-sentences" $p.script) -}}
{{- end -}}
{{- if and (eq $d.source "mock") (has $p.family (list "bert" "t5")) -}}
{{- fail (printf "%s has no mock data: set dataset.prefixes" $p.script) -}}
{{- end -}}
{{- if and (eq $d.splitBy "files") (or $d.prefixes $d.argumentsFile) -}}
{{- fail "dataset.splitBy files is for a folder: use fraction with dataset.prefixes or dataset.argumentsFile" -}}
{{- end -}}
{{- if and (eq $d.splitBy "files") $p.hasData (not $v.training.benchmark) -}}
{{- $held := add (int64 $d.validationFiles) (int64 $d.testFiles) -}}
{{- if eq (int64 $d.validationFiles) 0 -}}
{{- fail "dataset.validationFiles 0 leaves nothing to evaluate on: set it, or training.benchmark=true" -}}
{{- end -}}
{{- with $d.files -}}
{{- if le (int64 .) $held -}}
{{- fail (printf "dataset.files %d leaves none to train on: %d are for validation and %d for test, so set dataset.validationFiles and dataset.testFiles lower, or dataset.splitBy=fraction" (int64 .) (int64 $d.validationFiles) (int64 $d.testFiles)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq $d.splitBy "fraction") (not $v.training.benchmark) (regexMatch "^0+(\\.0*)?," $d.split) -}}
{{- fail (printf "dataset.split %s leaves nothing to train on: give the first number a share" $d.split) -}}
{{- end -}}
{{- if and (eq $d.splitBy "fraction") (not $v.training.benchmark) (regexMatch "^[^,]+,0+(\\.0*)?(,|$)" $d.split) -}}
{{- fail (printf "dataset.split %s leaves nothing to evaluate on: give validation a share, or set training.benchmark=true" $d.split) -}}
{{- end -}}
{{- if and (has $v.tokenizer.type (list "HuggingFaceTokenizer" "Llama2Tokenizer" "SentencePieceTokenizer" "GPTSentencePieceTokenizer" "TikTokenizer")) (not $v.tokenizer.model) -}}
{{- fail (printf "%s needs tokenizer.model" $v.tokenizer.type) -}}
{{- end -}}
{{- end -}}
