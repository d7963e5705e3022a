#!/bin/sh
# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
# Four failures of real training runs, as recorded in tests/corpus, and what mwatch says of them.
# MWATCH names the command to use. Needs no GPU, no cluster and no network.
set -eu
cd "$(dirname "$0")/.."
mwatch=${MWATCH:-mwatch}
incidents='nan-guard-off hang-nccl-timeout checkpoint-shard-cut oom'

command -v "$mwatch" >/dev/null || {
    echo "demo: there is no command $mwatch: run make demo, which sets it up" >&2
    exit 1
}
missing=
for incident in $incidents; do
    [ -r "tests/corpus/$incident/trainer.log" ] || missing="$missing tests/corpus/$incident/trainer.log"
done
if [ -n "$missing" ]; then
    echo "demo: these recorded logs are missing:$missing" >&2
    exit 1
fi
trap 'exit 130' INT TERM

# scene SENTENCE INCIDENT: the verdict of one recorded run. Exit code 1 is a finding, not a failure.
scene() {
    printf '\n\n%s\n\n$ mwatch diagnose tests/corpus/%s\n\n' "$1" "$2"
    "$mwatch" diagnose "tests/corpus/$2" || [ $? -eq 1 ] || {
        echo "demo: mwatch diagnose tests/corpus/$2 failed" >&2
        exit 1
    }
}

scene 'The loss became NaN, nobody stopped it, and it saved three poisoned checkpoints.' nan-guard-off
scene 'One rank of two went to sleep. The other one complains, and is not to blame.' hang-nccl-timeout
scene 'The newest checkpoint has a shard that was cut short.' checkpoint-shard-cut
scene 'The GPU ran out of memory: the same settings would run out of it again.' oom
printf '\n\nThe whole story of a run: mwatch replay tests/corpus/torchrun-killed-twice\n'
