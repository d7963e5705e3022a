# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""LLM-Foundry's arguments: a YAML file, then `key=value` words that win over it.

With `autoresume` Composer takes what its link `latest-rank0.pt` leads to and no `load_path`, so a
resume from a chosen checkpoint turns it off. Composer refuses a folder that holds newer files
than the checkpoint it starts from, unless `save_overwrite` is set. Of the YAML file only plain
values at the top level are seen.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Sequence

from mwatch_trainer.command import argv as words
from mwatch_trainer.command.megatron import SAVE, Edit

_LAUNCHERS = ("composer", "llmfoundry")
_MAX_YAML = 1 << 20


class ComposerSettings(NamedTuple):
    save_folder: str | None
    load_path: str | None
    autoresume: bool
    config: str
    """The text of the YAML file; empty where it cannot be read."""


def is_composer(program: words.Program) -> bool:
    if words.has_flag(program.args, *SAVE):
        return False
    is_launched = (program.launcher or "").split(".")[0] in _LAUNCHERS
    return is_launched or _config_of(program.args) is not None


def settings(program: words.Program) -> ComposerSettings:
    config = _read(_config_of(program.args))
    save_folder = _value(program.args, config, "save_folder")
    run_name = _value(program.args, config, "run_name")
    if save_folder is not None and run_name is not None:
        save_folder = save_folder.replace("{run_name}", run_name)
    if save_folder is not None and (not words.is_settled(save_folder) or "{" in save_folder):
        save_folder = None
    autoresume = (_value(program.args, config, "autoresume") or "").lower() == "true"
    return ComposerSettings(
        save_folder, _value(program.args, config, "load_path"), autoresume, config
    )


def resume(args: Sequence[str], folder: str, name: str, config: str, has_newer: bool) -> Edit:
    """Loads the checkpoint `name` of `folder`, with its optimizer and its place in the data."""
    wanted: list[tuple[str, str]] = [("load_path", os.path.join(folder, name))]
    if (_value(args, config, "autoresume") or "").lower() == "true":
        wanted.append(("autoresume", "false"))
    if (_value(args, config, "load_weights_only") or "").lower() == "true":
        wanted.append(("load_weights_only", "false"))
    if _value(args, config, "load_ignore_keys") or re.search(r"(?m)^load_ignore_keys\s*:", config):
        wanted.append(("load_ignore_keys", "null"))
    if has_newer and (_value(args, config, "save_overwrite") or "").lower() != "true":
        wanted.append(("save_overwrite", "true"))
    return _with(args, wanted)


def from_beginning(args: Sequence[str], config: str, has_any: bool) -> Edit:
    wanted: list[tuple[str, str]] = []
    if (_value(args, config, "autoresume") or "").lower() == "true":
        wanted.append(("autoresume", "false"))
    if has_any and (_value(args, config, "save_overwrite") or "").lower() != "true":
        wanted.append(("save_overwrite", "true"))
    return _with(args, wanted)


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


def _read(path: str | None) -> str:
    try:
        with open(path or "", encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_YAML)
    except OSError:
        return ""


def _value(args: Sequence[str], config: str, key: str) -> str | None:
    for word in reversed(args):
        if word.startswith(key + "="):
            return word[len(key) + 1 :].strip("\"'") or None
    found = re.findall(rf"(?m)^{key}[ \t]*:[ \t]*([^\s#].*?)[ \t]*(?:#.*)?$", config)
    value = found[-1].strip("\"'") if found else ""
    return None if value in ("", "null", "~", "None") else value
