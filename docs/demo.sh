#!/bin/sh
# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
# Three failures of real training runs, as recorded in tests/corpus, and what mwatch reads in them.
# MWATCH names the command to use. Needs no GPU, no cluster and no network.
set -eu
cd "$(dirname "$0")/.."
mwatch=${MWATCH:-mwatch}

command -v "$mwatch" >/dev/null || {
    echo "demo: there is no command $mwatch: run make demo, which sets it up" >&2
    exit 1
}
missing=
for incident in nan sigterm oom; do
    [ -r "tests/corpus/$incident/trainer.log" ] || missing="$missing tests/corpus/$incident/trainer.log"
done
if [ -n "$missing" ]; then
    echo "demo: these recorded logs are missing:$missing" >&2
    exit 1
fi

events=$(mktemp)
trap 'rm -f "$events"' EXIT
trap 'exit 130' INT TERM

# Runs mwatch; exit code 1 is a finding, not a failure.
read_with() {
    "$mwatch" "$@" || [ $? -eq 1 ] || {
        echo "demo: mwatch $* failed" >&2
        exit 1
    }
}

# scene SENTENCE INCIDENT EVENTS: the events of these kinds (an extended regular expression), without
# the messages that the catalogue knows as harmless.
scene() {
    log=tests/corpus/$2/trainer.log
    printf '\n%s\n\n$ mwatch parse %s | grep -E '\''"event":"(%s)"'\'' | grep -v benign\n' "$1" "$log" "$3"
    read_with parse "$log" | grep -v '"role":"benign"' >"$events"
    grep -E "\"event\":\"($3)\"" "$events" | head -n 4 | sed 's/^\(.\{240\}\).*$/\1 .../' || true
}

# explain WORD: what the catalogue knows about the first fault of the scene with WORD in its id.
explain() {
    id=$(sed -n 's/^.*"event":"fault".*"id":"\([^"]*'"$1"'[^"]*\)".*$/\1/p' "$events" | head -n 1)
    if [ -z "$id" ]; then
        echo "demo: mwatch found no $1 fault in $log" >&2
        exit 1
    fi
    printf '\n$ mwatch faults %s\n' "$id"
    read_with faults "$id"
}

scene 'The loss became NaN: Megatron ran the step again, got NaN again, and stopped.' nan 'fault|error|exit'
explain rerun

scene 'The trainer was sent SIGTERM: Megatron saved a checkpoint and left in good order.' sigterm 'checkpoint|exit'

scene 'The GPU ran out of memory: the same settings would run out of it again.' oom 'fault|error|exit'
explain memory
