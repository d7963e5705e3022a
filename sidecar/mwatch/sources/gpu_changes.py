# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What became worse on one GPU between two looks, in entries of the catalogue.

Where the kernel log has an Xid for it, it is told in the kernel's words: whoever reads those
reads these. A driver that only wants the GPU reset once the job has ended is no reason to end it,
so that is told in words that ask for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from mwatch.model.gpu import Gpu

RECOVERY = 154
_ACTIONS = {
    0: "None",
    1: "GPU Reset Required",
    2: "Node Reboot Required",
    5: "Recover IMEX Domain",
    6: "Bus Reset Required",
    7: "System Reboot Required",
}
_AFTER_THE_JOB = {3: "drain P2P", 4: "drain and reset"}


def kernel_words(gpu: Gpu, xid: int) -> str:
    """By which also the number of an unknown Xid is found again."""
    return f"NVRM: Xid ({gpu.uuid}): {xid}"


def changes(before: Gpu, now: Gpu) -> Iterator[tuple[str, str]]:
    """Id of the entry, and words."""
    more = _more(before.ecc_uncorrected, now.ecc_uncorrected)
    if more:
        words = f"NVML: {more} more uncorrectable ECC errors on GPU {now.number}"
        yield "gpu-ecc-uncorrectable", words
    if before.remap_pending is False and now.remap_pending:
        yield "xid-63", f"{kernel_words(now, 63)}, told by NVML: a row waits for a reset"
    if before.remap_failed is False and now.remap_failed:
        yield "xid-64", f"{kernel_words(now, 64)}, told by NVML: a row could not be replaced"
    due, was_due = now.recovery_action, before.recovery_action
    if due is not None and was_due is not None and due != was_due:
        yield f"xid-{RECOVERY}", f"{kernel_words(now, RECOVERY)}, {_recovery(was_due, due)}"


def _recovery(before: int, now: int) -> str:
    if now not in _ACTIONS:
        said = _AFTER_THE_JOB.get(now, f"recovery action {now}")
        return f"told by NVML: {said}, when the job has ended"
    was = _ACTIONS.get(before) or _AFTER_THE_JOB.get(before, "not known")
    return f"GPU recovery action changed from {before:#x} ({was}) to {now:#x} ({_ACTIONS[now]})"


def _more(before: int | None, now: int | None) -> int:
    return 0 if before is None or now is None else max(now - before, 0)
