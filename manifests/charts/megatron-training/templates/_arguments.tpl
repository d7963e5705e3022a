{{- /* SPDX-FileCopyrightText: The mwatch authors */ -}}
{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* The arguments of Megatron's script, as a list. Defaults of Megatron are omitted. */ -}}

{{- define "megatron.launcher" -}}
{{- $v := .Values -}}
{{- $words := list "torchrun" "--nnodes" (toString (int64 $v.training.nodes)) "--nproc-per-node" (toString (int64 $v.training.gpusPerNode)) -}}
{{- /* The id is the same in all renders, so that old and new pods meet. No restarts hidden from Kubernetes. */ -}}
{{- $words = concat $words (list "--rdzv-backend" "c10d" "--rdzv-endpoint" "$(MASTER_ADDR):$(MASTER_PORT)" "--rdzv-id" .plan.name) -}}
{{- $words = concat $words (list "--rdzv-conf" (printf "join_timeout=%d,read_timeout=600" (int64 $v.training.joinTimeoutSeconds)) "--max-restarts" "0") -}}
{{- toYaml $words -}}
{{- end -}}

{{- define "megatron.arguments" -}}
{{- $a := get (include "megatron.argumentsWritten" . | fromYaml) "words" -}}
{{- range .Values.training.extraArguments }}{{ $a = append $a (toString .) }}{{ end -}}
{{- $start := ternary (splitList " " .plan.script) (list .plan.script) (hasPrefix "-m " .plan.script) -}}
{{- toYaml (concat $start $a) -}}
{{- end -}}

{{- define "megatron.argumentsWritten" -}}
{{- /* Arguments set by the chart, without training.extraArguments. */ -}}
{{- $a := list -}}
{{- range list "Model" "Layout" "Training" "Optimizer" "Data" "Checkpoint" -}}
{{- $a = concat $a (get (include (printf "megatron.arguments%s" .) $ | fromYaml) "words") -}}
{{- end -}}
{{- toYaml (dict "words" $a) -}}
{{- end -}}

{{- define "megatron.argumentsModel" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $a := list "--hidden-size" (toString (int64 $p.hidden)) "--num-attention-heads" (toString (int64 $p.heads)) -}}
{{- if eq $p.family "t5" -}}
{{- $a = concat $a (list "--encoder-num-layers" (toString (int64 $p.layers)) "--decoder-num-layers" (toString (int64 $p.decoderLayers))) -}}
{{- $a = concat $a (list "--encoder-seq-length" (toString (int64 $p.sequence)) "--decoder-seq-length" (toString (int64 $v.model.decoderSeqLength)) "--vocab-extra-ids" "100") -}}
{{- else -}}
{{- $a = concat $a (list "--num-layers" (toString (int64 $p.layers)) "--seq-length" (toString (int64 $p.sequence))) -}}
{{- end -}}
{{- $a = concat $a (list "--max-position-embeddings" (toString (int64 $p.positions))) -}}
{{- with $v.model.ffnHiddenSize }}{{ $a = concat $a (list "--ffn-hidden-size" (toString (int64 .))) }}{{ end -}}
{{- with $v.model.numQueryGroups }}{{ $a = concat $a (list "--group-query-attention" "--num-query-groups" (toString (int64 .))) }}{{ end -}}
{{- if eq $v.model.architecture "llama" -}}
{{- $a = concat $a (list "--position-embedding-type" "rope" "--normalization" "RMSNorm" "--swiglu" "--disable-bias-linear" "--untie-embeddings-and-output-weights") -}}
{{- $a = concat $a (list "--attention-dropout" "0" "--hidden-dropout" "0") -}}
{{- with $v.model.rotaryBase }}{{ $a = concat $a (list "--rotary-base" (toString (int64 .))) }}{{ end -}}
{{- end -}}
{{- /* The only base model with biases, and with an epsilon that differs from Megatron's default. */ -}}
{{- if and $v.continued.enabled (eq $v.continued.modelSize "qwen2.5") }}{{ $a = concat $a (list "--add-qkv-bias" "--norm-epsilon" "1e-06") }}{{ end -}}
{{- if $v.moe.experts -}}
{{- /* Grouped experts have no bias. */ -}}
{{- if ne $v.model.architecture "llama" }}{{ $a = append $a "--disable-bias-linear" }}{{ end -}}
{{- $a = concat $a (list "--num-experts" (toString (int64 $v.moe.experts)) "--moe-router-topk" (toString (int64 $v.moe.topk)) "--moe-router-load-balancing-type" "aux_loss") -}}
{{- $a = concat $a (list "--moe-aux-loss-coeff" (toString $v.moe.auxLossCoefficient) "--moe-token-dispatcher-type" "alltoall" "--moe-grouped-gemm") -}}
{{- with $v.moe.ffnHiddenSize }}{{ $a = concat $a (list "--moe-ffn-hidden-size" (toString (int64 .))) }}{{ end -}}
{{- /* With top 1 the softmax must come before the choice, or its weight is always 1. */ -}}
{{- if eq (int64 $v.moe.topk) 1 }}{{ $a = append $a "--moe-router-pre-softmax" }}{{ end -}}
{{- end -}}
{{- toYaml (dict "words" $a) -}}
{{- end -}}

{{- define "megatron.argumentsLayout" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $a := list "--tensor-model-parallel-size" (toString (int64 $p.tensor)) -}}
{{- if gt (int64 $p.pipeline) 1 }}{{ $a = concat $a (list "--pipeline-model-parallel-size" (toString (int64 $p.pipeline))) }}{{ end -}}
{{- if gt (int64 $p.context) 1 }}{{ $a = concat $a (list "--context-parallel-size" (toString (int64 $p.context))) }}{{ end -}}
{{- if gt (int64 $p.expert) 1 }}{{ $a = concat $a (list "--expert-model-parallel-size" (toString (int64 $p.expert))) }}{{ end -}}
{{- with $v.parallelism.virtualStageLayers }}{{ $a = concat $a (list "--num-layers-per-virtual-pipeline-stage" (toString (int64 .))) }}{{ end -}}
{{- if $p.isSequenceParallel }}{{ $a = append $a "--sequence-parallel" }}{{ end -}}
{{- if $v.parallelism.distributedOptimizer }}{{ $a = append $a "--use-distributed-optimizer" }}{{ end -}}
{{- if $v.parallelism.overlap -}}
{{- $a = append $a "--overlap-grad-reduce" -}}
{{- if $v.parallelism.distributedOptimizer }}{{ $a = append $a "--overlap-param-gather" }}{{ end -}}
{{- end -}}
{{- if eq $v.parallelism.recompute "selective" }}{{ $a = concat $a (list "--recompute-granularity" "selective") }}{{ end -}}
{{- if eq $v.parallelism.recompute "full" }}{{ $a = concat $a (list "--recompute-granularity" "full" "--recompute-method" "uniform" "--recompute-num-layers" "1") }}{{ end -}}
{{- if $v.network.sharp }}{{ $a = append $a "--use-sharp" }}{{ end -}}
{{- toYaml (dict "words" $a) -}}
{{- end -}}

{{- define "megatron.argumentsTraining" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $a := list "--micro-batch-size" (toString (int64 $p.micro)) "--global-batch-size" (toString (int64 $p.batch)) -}}
{{- with $v.training.iterations }}{{ $a = concat $a (list "--train-iters" (toString (int64 .))) }}{{ end -}}
{{- with $v.training.samples }}{{ $a = concat $a (list "--train-samples" (toString (int64 .))) }}{{ end -}}
{{- if eq $v.training.precision "fp16" }}{{ $a = append $a "--fp16" }}{{ else }}{{ $a = append $a "--bf16" }}{{ end -}}
{{- if eq $v.training.precision "fp8" }}{{ $a = concat $a (list "--fp8-format" "hybrid") }}{{ end -}}
{{- $a = concat $a (list "--eval-interval" (toString (int64 $v.training.evalInterval)) "--eval-iters" (ternary "0" (toString (int64 $v.training.evalIterations)) $v.training.benchmark)) -}}
{{- $a = concat $a (list "--log-interval" (toString (int64 $v.training.logInterval)) "--log-throughput" "--tensorboard-dir" $p.tensorboard) -}}
{{- $a = concat $a (list "--distributed-timeout-minutes" (toString (int64 $v.training.distributedTimeoutMinutes)) "--seed" (toString (int64 $v.training.seed))) -}}
{{- toYaml (dict "words" $a) -}}
{{- end -}}

{{- define "megatron.argumentsOptimizer" -}}
{{- $v := .Values -}}
{{- $o := $v.optimizer -}}
{{- $a := list "--lr" (toString $o.lr) "--min-lr" (toString $o.minLr) "--lr-decay-style" $o.decayStyle -}}
{{- if $v.training.iterations -}}
{{- $a = concat $a (list "--lr-decay-iters" (include "megatron.first" (list $o.decayIterations $v.training.iterations))) -}}
{{- else -}}
{{- $a = concat $a (list "--lr-decay-samples" (include "megatron.first" (list $o.decaySamples $v.training.samples))) -}}
{{- end -}}
{{- if not (kindIs "invalid" $o.warmupFraction) }}{{ $a = concat $a (list "--lr-warmup-fraction" (toString $o.warmupFraction)) }}{{ end -}}
{{- $a = concat $a (list "--weight-decay" (toString $o.weightDecay) "--adam-beta1" (toString $o.adamBeta1) "--adam-beta2" (toString $o.adamBeta2)) -}}
{{- $a = concat $a (list "--clip-grad" (toString $o.clipGrad) "--init-method-std" (toString $o.initMethodStd)) -}}
{{- if eq $o.onResume "values" }}{{ $a = append $a "--override-opt_param-scheduler" }}{{ end -}}
{{- if eq $o.onResume "checkpoint" }}{{ $a = append $a "--use-checkpoint-opt_param-scheduler" }}{{ end -}}
{{- toYaml (dict "words" $a) -}}
{{- end -}}

{{- define "megatron.argumentsData" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $d := $v.dataset -}}
{{- $a := list -}}
{{- if eq $d.source "mock" -}}
{{- $a = list "--mock-data" "--tokenizer-type" "NullTokenizer" "--vocab-size" "50257" -}}
{{- else if $p.hasData -}}
{{- $split := ternary "100,0,0" $d.split $v.training.benchmark -}}
{{- if $d.prefixes -}}
{{- $a = concat (list "--data-path") $d.prefixes (list "--split" $split) -}}
{{- else if and (eq $d.splitBy "files") (not $v.training.benchmark) -}}
{{- $a = list "--per-split-data-args-path" "/training/data.json" -}}
{{- else -}}
{{- $a = list "--data-args-path" ($d.argumentsFile | default "/training/data.txt") "--split" $split -}}
{{- end -}}
{{- $a = concat $a (list "--data-cache-path" $p.cache) -}}
{{- /* A custom module may have its own tokenizer. */ -}}
{{- if ne $p.family "other" }}{{ $a = concat $a (list "--tokenizer-type" $v.tokenizer.type) }}{{ end -}}
{{- if eq $p.family "other" -}}
{{- else if $v.tokenizer.model -}}
{{- $a = concat $a (list "--tokenizer-model" $v.tokenizer.model) -}}
{{- else -}}
{{- $a = concat $a (list "--vocab-file" $p.vocab) -}}
{{- if eq $v.tokenizer.type "GPT2BPETokenizer" }}{{ $a = concat $a (list "--merge-file" $p.merges) }}{{ end -}}
{{- /* Without it these releases download the tokenizer from the hub, at every start of every rank. */ -}}
{{- if semverCompare ">=0.15.0, <0.17.0" $v.image.release }}{{ $a = append $a "--legacy-tokenizer" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "words" $a) -}}
{{- end -}}

{{- define "megatron.argumentsCheckpoint" -}}
{{- $v := .Values -}}
{{- $p := .plan -}}
{{- $c := $v.checkpoints -}}
{{- $a := list "--save" $p.save "--load" $p.save "--save-interval" (toString (int64 $c.saveInterval)) "--ckpt-format" "torch_dist" -}}
{{- with $c.retainInterval }}{{ $a = concat $a (list "--save-retain-interval" (toString (int64 .))) }}{{ end -}}
{{- if ne $p.family "other" }}{{ $a = concat $a (list "--ckpt-fully-parallel-load" "--ckpt-assume-constant-structure") }}{{ end -}}
{{- if and $c.async (not $p.isHandover) -}}
{{- $a = append $a "--async-save" -}}
{{- /* Without the worker, Megatron disables asynchronous saves. */ -}}
{{- if ne $p.family "other" }}{{ $a = append $a "--use-persistent-ckpt-worker" }}{{ end -}}
{{- end -}}
{{- if $c.exitSignalHandler }}{{ $a = append $a "--exit-signal-handler" }}{{ end -}}
{{- if $p.mustExist }}{{ $a = append $a "--exit-on-missing-checkpoint" }}{{ end -}}
{{- if and $v.continued.enabled (eq $v.continued.stage "train") }}{{ $a = concat $a (list "--pretrained-checkpoint" $p.converted) }}{{ end -}}
{{- if $p.isHandover -}}
{{- $a = concat $a (list "--no-load-optim" "--no-load-rng" "--no-save-optim" "--no-save-rng" "--ckpt-convert-format" "torch" "--ckpt-convert-save" $p.handover) -}}
{{- end -}}
{{- toYaml (dict "words" $a) -}}
{{- end -}}
