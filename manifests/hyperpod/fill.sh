#!/bin/sh
# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
# Fills in one of the templates, as envsubst does, and rejects values that cannot work: unset variables
# (envsubst would leave them empty), and sizes that do not divide.
#   export IMAGE=... NUM_NODES=2 ...; ./fill.sh pytorchjob.yaml-template | kubectl apply -f -
set -eu

refuse() {
    echo "fill.sh: $1" >&2
    exit 1
}

divides() { # WHAT NUMBER BY-WHAT NUMBER
    [ $(($2 % $4)) -eq 0 ] || refuse "$1 $2 is not divisible by $3 $4"
}

template=${1:?give a template}
[ -r "$template" ] || refuse "no such template: $template"
if [ -n "${NUM_NODES:-}" ] && [ -z "${NUM_WORKERS:-}" ]; then
    export NUM_WORKERS=$((NUM_NODES - 1))
fi
names=$(grep -v '^ *#' "$template" | grep -o '\${[A-Z_]*}' | tr -d '${}' | sort -u)
for name in $names; do
    eval "value=\${$name:-}"
    [ -n "$value" ] || refuse "$name is not set: export it first"
    case $value in
    *[!A-Za-z0-9._/:@-]*) refuse "$name is '$value', which is not allowed in a manifest" ;;
    esac
done

case " $(echo "$names" | tr '\n' ' ') " in
*" TENSOR_PARALLEL "*)
    world=$((NUM_NODES * GPU_PER_NODE))
    model=$((TENSOR_PARALLEL * PIPELINE_PARALLEL))
    divides "the world size" "$world" "TENSOR_PARALLEL x PIPELINE_PARALLEL" "$model"
    divides HIDDEN_SIZE "$HIDDEN_SIZE" NUM_ATTENTION_HEADS "$NUM_ATTENTION_HEADS"
    divides NUM_ATTENTION_HEADS "$NUM_ATTENTION_HEADS" TENSOR_PARALLEL "$TENSOR_PARALLEL"
    divides NUM_LAYERS "$NUM_LAYERS" PIPELINE_PARALLEL "$PIPELINE_PARALLEL"
    divides GLOBAL_BATCH_SIZE "$GLOBAL_BATCH_SIZE" "MICRO_BATCH_SIZE x DP" \
        $((MICRO_BATCH_SIZE * world / model))
    [ "$SEQ_LENGTH" -le "$MAX_POSITION_EMBEDDINGS" ] ||
        refuse "SEQ_LENGTH $SEQ_LENGTH is above MAX_POSITION_EMBEDDINGS $MAX_POSITION_EMBEDDINGS"
    case $INSTANCE_TYPE in
    ml.*) ;;
    *) refuse "INSTANCE_TYPE is $INSTANCE_TYPE, but HyperPod types start with ml." ;;
    esac
    case $INSTANCE_TYPE in
    ml.g5.8xlarge) efa=0 ;;
    ml.p4d.24xlarge | ml.p4de.24xlarge) efa=4 ;;
    ml.p5.48xlarge | ml.p5e.48xlarge) efa=32 ;;
    ml.p5en.48xlarge) efa=16 ;;
    ml.p6-b200.48xlarge) efa=8 ;;
    *) efa=$EFA_PER_NODE ;;
    esac
    [ "$EFA_PER_NODE" -eq "$efa" ] ||
        refuse "EFA_PER_NODE is $EFA_PER_NODE, and $INSTANCE_TYPE has $efa"
    ;;
esac

# shellcheck disable=SC2086 # a list of names
filled=$(envsubst "$(printf '${%s} ' $names)" <"$template")
# Request no devices that the instance does not have.
printf '%s\n' "$filled" | sed '/amazonaws\.com\/efa: 0$/d'
