# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's environment: the user's, and what the probe and the flight recorder need.

A variable that the user set is left alone, under its old or its new name: torch takes the first
name it finds, so our new name would override the user's old one.
"""

from __future__ import annotations

import os
import pkgutil
from typing import Mapping, Sequence

import mwatch_trainer
from mwatch_trainer import contract, probe
from mwatch_trainer.probe.rank_identity import OWNER_VARIABLE

PROBE_SWITCH = "MWATCH_PROBE"
SITE = "site"
_RECORDER_DUMPS = "recorder"
_PACKAGE = "mwatch_trainer"
_ALWAYS = (
    (("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), "2000"),
    (("TORCH_NCCL_DUMP_ON_TIMEOUT",), "1"),
    (("NCCL_RAS_ENABLE",), "1"),
    (("PYTHONUNBUFFERED",), "1"),
)
_DUMP_NAMES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


# torch's own defaults. Given a path for dumps, Megatron (core_v0.19 on) sets its own values, among
# them a dump at the end of every run, which delays the exit until torch's monitor gives up.
_WITH_DUMPS = (
    (("TORCH_NCCL_EXTRA_DUMP_ON_EXEC",), "0"),
    (("TORCH_INCLUDE_STACK_TRACE",), "1"),
    (("TORCH_INCLUDE_ONLY_ACTIVE",), "0"),
)
_DUMP_FLAG = "--flight-recorder-dump-path"
"""Megatron's flag. The variables override it, so they are not set where the user has it."""


def of_child(
    environ: Mapping[str, str],
    directory: str | None,
    attempt: int,
    with_probe: bool,
    argv: Sequence[str] = (),
) -> tuple[dict[str, str], list[str]]:
    """Return the whole environment, and what could not be set up."""
    env = dict(environ)
    env.pop(OWNER_VARIABLE, None)  # of a rank that started us
    problems: list[str] = []
    for names, value in _ALWAYS:
        _set(env, names, value)
    env[contract.ATTEMPT_VARIABLE] = str(attempt)
    if directory is None:
        return env, problems
    env[contract.DIR_VARIABLE] = directory
    if not any(str(word).partition("=")[0] == _DUMP_FLAG for word in argv):
        problem = _keep_dumps(env, directory)
        problems += [problem] if problem else []
    if with_probe and environ.get(PROBE_SWITCH, "1") != "0":
        problem = _add_probe(env, directory)
        problems += [problem] if problem else []
    return env, problems


def _keep_dumps(env: dict[str, str], directory: str) -> str | None:
    """Put torch's own dumps, at a timeout, on the volume."""
    if any(name in env for name in _DUMP_NAMES):
        return None
    dumps = os.path.join(directory, contract.DUMPS_FOLDER, _RECORDER_DUMPS)
    try:
        os.makedirs(dumps, exist_ok=True)
    except OSError as error:
        return f"cannot create the folder for flight recorder dumps: {error.strerror}"
    _set(env, _DUMP_NAMES, os.path.join(dumps, "rank-"))
    for names, value in _WITH_DUMPS:
        _set(env, names, value)
    return None


def _set(env: dict[str, str], names: tuple[str, ...], value: str) -> None:
    if not any(name in env for name in names):
        env.update((name, value) for name in names)


def _add_probe(env: dict[str, str], directory: str) -> str | None:
    try:
        site = site_folder(directory)
    except (OSError, ImportError) as error:
        return f"the probe is not available: {error}"
    if os.pathsep in site:
        return f"the probe cannot be used from {site}: its path has a {os.pathsep!r}"
    given = env.get("PYTHONPATH")
    if given is None or given == site or given.startswith(site + os.pathsep):
        env["PYTHONPATH"] = given or site
    else:
        env["PYTHONPATH"] = site + os.pathsep + given
    return None


def site_folder(directory: str) -> str:
    """Return the folder of our `sitecustomize`; a copy on the volume if we run from a `.pyz`."""
    here = os.path.join(os.path.dirname(os.path.abspath(mwatch_trainer.__file__)), SITE)
    if os.path.isfile(os.path.join(here, "sitecustomize.py")):
        return here
    root = os.path.join(directory, SITE, _PACKAGE)
    modules = pkgutil.iter_modules(probe.__path__)
    probe_files = [f"probe/{name}.py" for name in ("__init__", *(each.name for each in modules))]
    # The probe imports only its own package and `contract`: a test checks it.
    for name in ("__init__.py", "contract.py", *probe_files, f"{SITE}/sitecustomize.py"):
        data = pkgutil.get_data(_PACKAGE, name)
        if data is None:
            raise ImportError(f"{name} cannot be read")
        _put(os.path.join(root, name), data)
    return os.path.join(root, SITE)


def _put(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    contract.replace_file(path, data)
