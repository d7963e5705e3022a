# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every entry of the catalogue has a cause, and a sensible one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mwatch.detect.shared.causes import FAMILIES, cause_of
from mwatch.model.cause import Cause
from mwatch.model.fault import Blame, CatalogueEntry, RestartHelps, Role
from support.builders.job import entries

STOPS = {Cause.OOM, Cause.USER_ERROR, Cause.DATA}
RUNS_AGAIN = set(Cause) - STOPS
NOBODYS = {Cause.HEALTHY, Cause.FINISHED, Cause.UNKNOWN, Cause.BLIND, Cause.LOSS_STUCK}
BLAMED = [entry for entry in entries().values() if entry.role is not Role.BENIGN]


@pytest.mark.parametrize("entry", BLAMED, ids=lambda entry: entry.id)
def test_every_entry_has_a_cause_that_says_something(entry: CatalogueEntry) -> None:
    assert cause_of(entry) not in NOBODYS


@pytest.mark.parametrize(
    "entry", [entry for entry in BLAMED if entry.role is Role.ROOT], ids=lambda entry: entry.id
)
def test_a_root_cause_agrees_with_its_entry(entry: CatalogueEntry) -> None:
    cause = cause_of(entry)
    if entry.restart_helps in (RestartHelps.YES, RestartHelps.ELSEWHERE):
        assert cause in RUNS_AGAIN
    if entry.blame is Blame.GPU:
        assert cause is Cause.HARDWARE
    if entry.blame is Blame.FABRIC:
        assert cause in {Cause.FABRIC, Cause.HARDWARE, Cause.STORAGE}
    if entry.blame is Blame.USER and entry.restart_helps is RestartHelps.NO:
        known = {Cause.NAN, Cause.LOSS_SCALE_COLLAPSE, Cause.CHECKPOINT, Cause.CRASH}
        assert cause in STOPS | known | {Cause.IMAGE, Cause.VOLUME}


@pytest.mark.parametrize(
    ("id", "cause"),
    [
        ("cuda-out-of-memory", Cause.OOM),
        ("dataloader-killed", Cause.OOM),
        ("gpu-ecc-uncorrectable", Cause.HARDWARE),
        ("xid-79", Cause.HARDWARE),
        ("xid-31", Cause.CRASH),
        ("rerun-persistent-error", Cause.HARDWARE),
        ("rerun-application-error", Cause.NAN),
        ("nan-guard-raised", Cause.NAN),
        ("checkpoint-file-corrupt", Cause.CHECKPOINT),
        ("checkpoint-load-exit-zero", Cause.CHECKPOINT),
        ("checkpoint-keys-differ", Cause.CHECKPOINT),
        ("checkpoint-write-failed", Cause.STORAGE),
        ("storage-stale-handle", Cause.STORAGE),
        ("ib-retry-exceeded", Cause.FABRIC),
        ("collective-timeout", Cause.HANG),
        ("data-files-missing", Cause.DATA),
        ("module-missing", Cause.USER_ERROR),
        ("k8s-preempted", Cause.PREEMPTED),
        ("k8s-image-pull", Cause.IMAGE),
        ("keyboard-interrupt", Cause.DELETED_BY_USER),
    ],
)
def test_well_known_faults(id: str, cause: Cause) -> None:
    assert cause_of(entries()[id]) is cause


def test_an_entry_that_names_its_cause_says_more_than_its_family() -> None:
    assert {entry.runbook for entry in BLAMED} <= FAMILIES.keys()
    named = [entry for entry in entries().values() if entry.cause is not None]
    assert named
    assert [entry.id for entry in named if entry.cause is FAMILIES[entry.runbook]] == []
    assert [entry.id for entry in named if entry.role is Role.BENIGN] == []


def test_the_cause_of_an_entry_comes_before_that_of_its_family() -> None:
    entry = entries()["module-missing"]
    assert cause_of(replace(entry, cause=Cause.DATA)) is Cause.DATA


def test_a_benign_line_is_no_cause() -> None:
    assert cause_of(entries()["rerun-mode"]) is Cause.UNKNOWN
