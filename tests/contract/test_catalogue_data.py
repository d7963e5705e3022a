# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The packaged fault catalogue keeps its promises: every pattern, example and runbook of it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import hyperscan
import pytest

from mwatch.config.catalogue import packaged_files, read, tables
from mwatch.model.fault import CatalogueEntry, Role
from mwatch.parse.lines.literals import literals

RUNBOOKS = Path(__file__).resolve().parents[2] / "runbooks"
SECTIONS = ["Meaning", "Impact", "Example", "Diagnosis", "Mitigation"]
ENTRIES = [e for file, text in packaged_files() for e in read(text, file, patterns_too=True)]
TEXTUAL = [entry for entry in ENTRIES if entry.xid is None]
COMPILED = [(entry, re.compile(pattern)) for entry in TEXTUAL for pattern in entry.patterns]
XID_LINE = re.compile(r"NVRM: Xid \(((?:PCI:)?[0-9a-fA-F:.]+)\): (\d+),")

ORDINARY = [
    " [2026-11-15 00:42:24.724114] iteration      129/    5000 | consumed samples:         2064 | "
    "elapsed time per iteration (ms): 113.9 | learning rate: 3.641026E-05 | "
    "global batch size:    16 | lm loss: 3.968800E+00 | loss scale: 1.0 | grad norm: 1.651 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |",
    " iteration     5426/  250000 | consumed samples:        43408 | loss scale: 1.0 | grad norm: "
    "nan | number of skipped iterations:   0 | number of nan iterations:   0 |",
    "  error_injection_rate ............................ 0",
    "  error_injection_type ............................ transient_error",
    "  check_for_nan_in_loss_and_grad .................. True",
    "  exit_on_missing_checkpoint ...................... False",
    "  fsdp_db_use_persist_buf_on_alloc_fail ........... False",
    "  rerun_mode ...................................... validate_results",
    "[2026-11-15 00:42:27.910584] saving checkpoint at iteration     163 to /tmp/ck2 in torch_dist",
    "  [2026-11-15 00:42:46.025180] successfully saved checkpoint from iteration     163 to /ck",
    " loading distributed checkpoint from /data/checkpoints at iteration 500",
    "[exiting program after receiving SIGTERM.] datetime: 2026-11-15 00:42:46.027998 ",
    "Root Cause (first observed failure):",
    "  exitcode  : 1 (pid: 2255)",
    "  error_file: <N/A>",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "/workspace/megatron/training/training.py", line 2027, in pretrain',
    "    raise AssertionError(",
    "CUDA kernel errors might be asynchronously reported at some other API call.",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 584.37 | max allocated: 1261.64",
    "worker-3:1412:1893 [5] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0",
    "worker-3:1412:1893 [5] NCCL INFO NET/OFI Selected Provider is efa (found 32 nics)",
    "worker-3:1412:1893 [5] NCCL INFO comm 0x55 rank 5 nranks 16 cudaDev 5 busId 9b000 commId 0x9"
    " - Init COMPLETE",
    "[titan] 2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.56284  grad_norm: 22.7664",
    "[2022-01-19 13:09:13,305] [INFO] [stage_1_and_2.py:1644:step] [deepscale] OVERFLOW! Rank 0 "
    "Skipping step. Attempted loss scale: 1048576.0, reducing to 1048576.0",
    "Normal  Pulled  pod/job-worker-3  Successfully pulled image in 12.1s",
    "Normal  Killing  pod/job-worker-3  Stopping container pytorch",
    "> initializing torch distributed ...",
    "",
]


def winner(line: str) -> CatalogueEntry | None:
    """Benign beats everything, else the longest match wins; a tie has no winner."""
    lengths: dict[str, int] = {}
    for entry, pattern in COMPILED:
        for match in pattern.finditer(line):
            lengths[entry.id] = max(lengths.get(entry.id, 0), len(match[0]))
    found = [entry for entry in TEXTUAL if entry.id in lengths]
    found = [entry for entry in found if entry.role is Role.BENIGN] or found
    best = max((lengths[entry.id] for entry in found), default=0)
    first = [entry for entry in found if lengths[entry.id] == best]
    return first[0] if len(first) == 1 else None


def test_there_are_at_least_60_xids_and_80_signatures() -> None:
    assert len(ENTRIES) - len(TEXTUAL) >= 60
    assert len(TEXTUAL) >= 80


def test_no_id_is_used_twice() -> None:
    assert len({entry.id for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("entry", TEXTUAL, ids=lambda entry: entry.id)
def test_every_example_is_won_by_its_own_entry(entry: CatalogueEntry) -> None:
    assert [winner(example) for example in entry.examples] == [entry] * len(entry.examples)


def test_every_xid_example_is_a_kernel_line_with_that_number() -> None:
    for entry in ENTRIES:
        for example in entry.examples if entry.xid is not None else ():
            line = XID_LINE.search(example)
            assert line is not None, entry.id
            assert int(line[2]) == entry.xid


@pytest.mark.parametrize("line", ORDINARY)
def test_an_ordinary_line_is_no_fault(line: str) -> None:
    assert [entry.id for entry, pattern in COMPILED if pattern.search(line)] == []


def test_a_cause_inside_the_watchdog_line_wins_over_the_watchdog() -> None:
    line = "[Rank 3] NCCL watchdog thread terminated with exception: CUDA error: {}"
    for text, name in [
        ("out of memory", "cuda-out-of-memory"),
        ("uncorrectable ECC error encountered", "gpu-ecc-uncorrectable"),
        ("an illegal memory access was encountered", "cuda-illegal-address"),
        ("unspecified launch failure", "cuda-launch-failure"),
        ("misaligned address", "cuda-misaligned-address"),
    ]:
        found = winner(line.format(text))
        assert found is not None
        assert found.id == name


def test_a_recovered_out_of_memory_is_benign_and_a_plain_one_is_not() -> None:
    recovered = winner("CUDA out of memory or excessive memory allocation retries detected.")
    plain = winner("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB.")
    assert recovered is not None
    assert plain is not None
    assert (recovered.role, plain.role) == (Role.BENIGN, Role.ROOT)


def test_the_winner_rule_sees_a_tie() -> None:
    assert winner("nothing of the kind") is None
    assert winner("Readiness probe failed Readiness probe failed") is not None


@pytest.mark.parametrize("entry", TEXTUAL, ids=lambda entry: entry.id)
def test_no_pattern_can_run_over_the_end_of_a_line_or_without_bound(entry: CatalogueEntry) -> None:
    for pattern in entry.patterns:
        assert re.search(r"(?<!\\)\.[*+]|\\[sSDW]", pattern) is None, pattern
        for negated in re.findall(r"\[\^(?:\\.|[^\]\\])*\]", pattern):
            assert r"\n" in negated, pattern


def test_every_match_of_an_example_contains_one_of_its_literals() -> None:
    for entry, pattern in COMPILED:
        for example in entry.examples:
            for match in pattern.finditer(example):
                assert any(text in match[0] for text in literals(pattern.pattern)), pattern.pattern


def test_hyperscan_compiles_the_lot_and_finds_each_example() -> None:
    expressions = [pattern.pattern.encode() for _, pattern in COMPILED]
    flags = hyperscan.HS_FLAG_MULTILINE | hyperscan.HS_FLAG_SINGLEMATCH
    database = hyperscan.Database()
    database.compile(
        expressions=expressions,
        ids=range(len(expressions)),
        elements=len(expressions),
        flags=[flags] * len(expressions),
    )
    block = "\n".join(example for entry in TEXTUAL for example in entry.examples)
    hit: set[int] = set()
    database.scan(block.encode(), match_event_handler=lambda number, *_: hit.add(number))
    assert [expressions[n] for n in range(len(expressions)) if n not in hit] == []


def test_the_plain_layout_reads_as_toml_does() -> None:
    for file, text in packaged_files():
        assert tables(text, file) == tomllib.loads(text)["fault"], file


def test_the_catalogue_is_printable_ascii_without_vendor_hosts() -> None:
    for file, text in packaged_files():
        assert text.isascii(), file
        assert re.search(r"nvcr\.io|ghcr\.io|\.dkr\.ecr|/root/|/home/", text) is None, file


def test_every_runbook_has_the_four_sections_and_is_used() -> None:
    pages = {page.stem: page.read_text("utf-8") for page in RUNBOOKS.glob("[a-z]*.md")}
    assert {name: re.findall(r"^## (.+)$", text, re.M) for name, text in pages.items()} == (
        dict.fromkeys(pages, SECTIONS)
    )
    assert set(pages) == {entry.runbook for entry in ENTRIES}
    assert all(f"({name}.md)" in (RUNBOOKS / "README.md").read_text("utf-8") for name in pages)


def test_a_runbook_names_only_entries_and_commands_that_exist() -> None:
    known = {entry.id for entry in ENTRIES} | {str(entry.xid) for entry in ENTRIES}
    for page in RUNBOOKS.glob("[a-z]*.md"):
        text = re.sub(r"^```\n\$.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)  # output
        for command, argument in re.findall(r"mwatch (\w+) ([\w.*-]+)", text):
            if command == "rollback":
                continue
            assert command in ("parse", "faults"), page.name
            assert command == "parse" or argument in known | {"ID", "--role"}, page.name
