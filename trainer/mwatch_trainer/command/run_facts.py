# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The run about to start: facts from its command line and environment, and the child's environment.

A variable that the user set is left alone, whether under its old or its new name: torch uses the
first name it finds, so setting the new name would override the user's old one.
"""

from __future__ import annotations

import os
import pkgutil
import re
from typing import Any, Mapping, NamedTuple, Sequence

from mwatch_trainer import contract
from mwatch_trainer.checkpoint import save_dir
from mwatch_trainer.command import argv, composer, megatron
from mwatch_trainer.command.argv import Program, value_of
from mwatch_trainer.command.megatron import SAVE
from mwatch_trainer.probe import rank_identity

_POD = re.compile(r".+-(?:master|worker|node-[0-9]+)-([0-9]{1,6})|.+-([0-9]{1,6})", re.ASCII)
_BY_TASK = (
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
_RANK_NAMES = (
    "MWATCH_NODE_RANK",
    "PET_NODE_RANK",
    "NODE_RANK",
    "GROUP_RANK",
    "JOB_COMPLETION_INDEX",
)
_COUNT_NAMES = ("MWATCH_NNODES", "PET_NNODES", "NNODES")


class NodePlace(NamedTuple):
    node_rank: int | None  # None: unknown, in a job of several nodes
    nnodes: int
    is_elastic: bool = False

    @property
    def is_first(self) -> bool:
        return self.node_rank == 0


def place_of(command: Sequence[str], program: Program, environ: Mapping[str, str]) -> NodePlace:
    """Return this wrapper's number in the job and how many wrappers there are.

    Exactly one wrapper of a job must be number 0; it need not be torch's rank 0. In a PyTorchJob,
    `RANK` is the pod's number and `WORLD_SIZE` is pods times processes. For an elastic range
    (`1:64`), which has no fixed number of wrappers, the lower end is used.
    """
    options = command[: program.start]
    for rank_name, count_name in _BY_TASK:
        rank, count = _number(environ.get(rank_name)), _number(environ.get(count_name))
        if rank is not None and count is not None and rank < count:
            return NodePlace(rank, count)
    if "LOCAL_RANK" in environ:  # a launcher has started one wrapper per rank
        rank, count = _number(environ.get("RANK")), _number(environ.get("WORLD_SIZE"))
        if rank is not None and count is not None and rank < count:
            return NodePlace(rank, count)
    nnodes, is_elastic = _count(options, environ)
    if nnodes <= 1 and not is_elastic:
        return NodePlace(0, 1)
    rank = _rank(options, environ)
    is_strange = rank is not None and rank >= nnodes and not is_elastic
    return NodePlace(None if is_strange else rank, max(nnodes, 1), is_elastic)


def _count(options: Sequence[str], environ: Mapping[str, str]) -> tuple[int, bool]:
    given = [value_of(options, "--nnodes", "--num_nodes", "--num_machines")]
    given += [environ.get(name) for name in _COUNT_NAMES]
    for text in given:
        least, _, most = (text or "").partition(":")
        if _number(least) is not None:
            return max(1, int(least)), bool(most) and most != least
    processes = _number(value_of(options, "--nproc_per_node", "--nproc-per-node", "--nproc", "-n"))
    processes = processes or _number(environ.get("PET_NPROC_PER_NODE")) or 1
    world = _number(value_of(options, "--world_size")) or _number(environ.get("WORLD_SIZE"))
    if world is None or "LOCAL_RANK" in environ:
        return 1, False
    whole, rest = divmod(world, processes)
    return (whole if whole and not rest else world), False


def _rank(options: Sequence[str], environ: Mapping[str, str]) -> int | None:
    given = [value_of(options, "--node_rank", "--node-rank", "--machine_rank")]
    given += [environ.get(name) for name in _RANK_NAMES]
    if "LOCAL_RANK" not in environ:
        given.append(environ.get("RANK"))
    for text in given:
        number = _number(text)
        if number is not None:
            return number
    pod = _POD.fullmatch(environ.get("MWATCH_POD") or environ.get("HOSTNAME", ""))
    return int(pod.group(1) or pod.group(2)) if pod else None


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if re.fullmatch(r"[0-9]{1,7}", text, re.ASCII) else None


SAVE_VARIABLE = "MWATCH_SAVE"  # names the checkpoint folder where the command line does not show it


class RunFacts(NamedTuple):
    command: tuple[str, ...]
    program: argv.Program
    is_composer: bool
    config: str  # Composer's YAML file
    save: str | None  # the checkpoint folder, absolute; None if unknown or an object store
    save_text: str  # as the user wrote it
    resumes_itself: bool  # the program resumes from its own save folder
    obstacle: str | None
    by_step: bool  # choose the checkpoint with a flag; else with the tracker
    place: NodePlace
    notes: tuple[str, ...] = ()

    def with_args(self, args: Sequence[str]) -> tuple[str, ...]:
        return (*self.command[: self.program.start], *args)


def look(
    command: Sequence[str], environ: Mapping[str, str], learned: Mapping[str, Any] | None = None
) -> RunFacts:
    """Collect the facts. `learned`: this pod's last `attempt.json`, which has the save folder that
    a launch script hides.
    """
    program = argv.find_program(command, environ)
    if composer.is_composer(program):
        seen = composer.settings(program)
        folder, resumes_itself, config = seen.save_folder, seen.autoresume, seen.config
    else:
        folders = megatron.folders(program)
        folder, config = folders.save, ""
        resumes_itself = folder is not None and _same(folder, folders.load)
    if folder is None and environ.get(SAVE_VARIABLE):
        folder, resumes_itself = environ[SAVE_VARIABLE], True
    if folder is None and learned is not None and learned.get("argv") == list(command):
        save = learned.get("save")
        if isinstance(save, str) and save:
            folder, resumes_itself = save, True
    notes = []
    if folder is not None and save_dir.is_remote(folder):
        notes.append(f"{folder} is an object store, which mwatch cannot read")
        folder = None
    is_composer = composer.is_composer(program)
    obstacle = program.obstacle if is_composer else megatron.obstacle(program)
    if obstacle is None and not is_composer and not argv.has_flag(program.args, *SAVE):
        obstacle = "the checkpoint folder is not among them"
    by_step = obstacle is None and not megatron.launcher_restarts(command, program, environ)
    return RunFacts(
        tuple(command),
        program,
        is_composer,
        config,
        None if folder is None else os.path.abspath(folder),
        folder or "",
        resumes_itself,
        obstacle,
        by_step and megatron.follows_ckpt_step(command, program, environ) is True,
        place_of(command, program, environ),
        tuple(notes),
    )


def _same(one: str, other: str | None) -> bool:
    return other is not None and os.path.realpath(one) == os.path.realpath(other)


PROBE_SWITCH = "MWATCH_PROBE"
SITE = "site"
_SHARED_WITH_PROBE = ("__init__.py", "contract.py", "rank_variables.py")
"""Everything that the probe imports outside its own package."""
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
"""Megatron's flag. The variables override it, so they are not set if the user passes it."""


def child_environment(
    environ: Mapping[str, str],
    directory: str | None,
    attempt: int,
    with_probe: bool,
    argv: Sequence[str] = (),
) -> tuple[dict[str, str], list[str]]:
    """Return the child's whole environment, and messages about what could not be set up."""
    env = dict(environ)
    env.pop(rank_identity.OWNER_VARIABLE, None)  # set if a rank started this wrapper
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
    """Make torch write its own timeout dumps to the volume; return the error message, or None."""
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
    """Return the folder of mwatch's `sitecustomize`; for a `.pyz`, a copy on the volume."""
    here = os.path.join(os.path.dirname(os.path.abspath(contract.__file__)), SITE)
    if os.path.isfile(os.path.join(here, "sitecustomize.py")):
        return here
    root = os.path.join(directory, SITE, _PACKAGE)
    modules = pkgutil.iter_modules([os.path.dirname(rank_identity.__file__)])
    probe_files = [f"probe/{name}.py" for name in ("__init__", *(each.name for each in modules))]
    for name in (*_SHARED_WITH_PROBE, *probe_files, f"{SITE}/sitecustomize.py"):
        data = pkgutil.get_data(_PACKAGE, name)
        if data is None:
            raise ImportError(f"{name} cannot be read")
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        contract.replace_file(path, data)
    return os.path.join(root, SITE)
