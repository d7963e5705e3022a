# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""LLM-Foundry's arguments: a YAML file, then `key=value` words that override it.

With `autoresume` Composer loads the target of its link `latest-rank0.pt` and ignores `load_path`,
so a resume from a chosen checkpoint turns `autoresume` off. Composer rejects a folder with files
newer than the checkpoint it starts from, unless `save_overwrite` is set. Only plain top-level
values of the YAML file are read.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Sequence

from mwatch_trainer import contract
from mwatch_trainer.command import argv
from mwatch_trainer.command.megatron import SAVE, Edit

_LAUNCHERS = ("composer", "llmfoundry")
_MAX_YAML = 1 << 20


class ComposerSettings(NamedTuple):
    save_folder: str | None
    autoresume: bool
    config: str  # the text of the YAML file; empty if unreadable


def is_composer(program: argv.Program) -> bool:
    if argv.has_flag(program.args, *SAVE):
        return False
    is_launched = (program.launcher or "").split(".")[0] in _LAUNCHERS
    return is_launched or _config_of(program.args) is not None


def settings(program: argv.Program) -> ComposerSettings:
    data = contract.read_bytes(_config_of(program.args) or "", _MAX_YAML)
    config = (data or b"").decode("utf-8", "replace")
    save_folder = _value(program.args, config, "save_folder")
    run_name = _value(program.args, config, "run_name")
    if save_folder is not None and run_name is not None:
        save_folder = save_folder.replace("{run_name}", run_name)
    if save_folder is not None and (not argv.is_expanded(save_folder) or "{" in save_folder):
        save_folder = None
    autoresume = _is_true(program.args, config, "autoresume")
    return ComposerSettings(save_folder, autoresume, config)


def resume(args: Sequence[str], folder: str, name: str, config: str, has_newer: bool) -> Edit:
    wanted = [("load_path", os.path.join(folder, name))]
    if _is_true(args, config, "autoresume"):
        wanted.append(("autoresume", "false"))
    if _is_true(args, config, "load_weights_only"):
        wanted.append(("load_weights_only", "false"))
    if _value(args, config, "load_ignore_keys") or re.search(r"(?m)^load_ignore_keys\s*:", config):
        wanted.append(("load_ignore_keys", "null"))
    if has_newer and not _is_true(args, config, "save_overwrite"):
        wanted.append(("save_overwrite", "true"))
    return _with(args, wanted)


def from_beginning(args: Sequence[str], config: str, has_any: bool) -> Edit:
    wanted: list[tuple[str, str]] = []
    if _is_true(args, config, "autoresume"):
        wanted.append(("autoresume", "false"))
    if has_any and not _is_true(args, config, "save_overwrite"):
        wanted.append(("save_overwrite", "true"))
    return _with(args, wanted)


def _is_true(args: Sequence[str], config: str, key: str) -> bool:
    return (_value(args, config, key) or "").lower() == "true"


def _with(args: Sequence[str], wanted: Sequence[tuple[str, str]]) -> Edit:
    edited, changes = list(args), []
    for key, value in wanted:
        places = [index for index, word in enumerate(edited) if word.startswith(key + "=")]
        new = f"{key}={value}"
        if places and edited[places[-1]] == new:
            continue
        was = f" (was {edited[places[-1]]})" if places else ""
        if places:
            edited[places[-1]] = new
        else:
            edited.append(new)
        changes.append(f"set {new}{was}")
    return Edit(tuple(edited), tuple(changes))


def _config_of(args: Sequence[str]) -> str | None:
    first = args[0] if args else ""
    return first if first.endswith((".yaml", ".yml")) else None


def _value(args: Sequence[str], config: str, key: str) -> str | None:
    for word in reversed(args):
        if word.startswith(key + "="):
            return word[len(key) + 1 :].strip("\"'") or None
    found = re.findall(rf"(?m)^{key}[ \t]*:[ \t]*([^\s#].*?)[ \t]*(?:#.*)?$", config)
    value = found[-1].strip("\"'") if found else ""
    return None if value in ("", "null", "~", "None") else value
