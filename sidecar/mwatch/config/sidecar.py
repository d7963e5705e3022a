# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a sidecar is told: a file (TOML), overridden by the environment, overridden by flags.

All three have the same names: `port` in the file, MWATCH_PORT, --port. A key of the file that is
not there, or a value that cannot be meant, is refused by its name. Variables that are not ours
are left alone; an empty one counts as not set, for manifests often leave one so.
"""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.errors import InputError
from mwatch_trainer import contract

MAX_BYTES = 1_000_000
DEFAULT_DIR = "/mwatch"
DEFAULT_PORT = 9401
DEFAULT_HOST = "::"
_NAME = re.compile(r"[A-Za-z0-9][\w.+/-]{0,252}")
_REPLICA = re.compile(
    r"-(?:(?:master|worker|chief|launcher|ps|node|workers)-)?(?:\d+-)?\d+(?:-[a-z0-9]{5})?"
)
"""What operators put behind a job's name: `-worker-3`, JobSet's `-node-0-3-x7k2p`."""


@dataclass(frozen=True, slots=True)
class SidecarSettings:
    dir: Path
    run: str
    pod: str
    """Also the name of its stream."""
    pod_uid: str | None = None
    namespace: str | None = None
    node: str | None = None
    host: str = DEFAULT_HOST
    """All addresses of both families; without IPv6, those of IPv4."""
    port: int = DEFAULT_PORT
    save: Path | None = None
    policy: Path | None = None
    evidence: Path | None = None
    token_file: Path | None = None
    mode: str | None = None
    """Only told: whoever acts is the controller."""
    otlp_endpoint: str | None = None
    tensorboard: Path | None = None
    """Event files that the trainer writes."""
    tensorboard_notes: Path | None = None
    """Where ours are written."""
    json_logs: bool = False
    until_final: bool = False
    """End when the wrapper says that no attempt follows in this pod."""


class _Option(NamedTuple):
    variable: str
    read: Callable[[str, Any], Any]


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"{name}: is {value!r}; give a text")
    return value


def _word(name: str, value: Any) -> str:
    text = _text(name, value)
    if not _NAME.fullmatch(text):
        raise InputError(f"{name}: {text[:60]!r} is no name; use letters, digits, dots and dashes")
    return text


def _path(name: str, value: Any) -> Path:
    text = _text(name, value)
    if "\0" in text:
        raise InputError(f"{name}: {text[:60]!r} is no path")
    return Path(text).absolute()


def _port(name: str, value: Any) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    number = value if is_number else int(value) if str(value).isdecimal() else -1
    if not 0 <= number <= 65535:
        raise InputError(f"{name}: is {value!r}; give a port from 0 to 65535 (0: any)")
    return int(number)


def _mode(name: str, value: Any) -> str:
    if value not in contract.MODES:
        raise InputError(f"{name}: is {value!r}; it can be {' or '.join(contract.MODES)}")
    return str(value)


_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _flag(name: str, value: Any) -> bool:
    found = value if isinstance(value, bool) else _FLAGS.get(str(value).lower())
    if found is None:
        raise InputError(f"{name}: is {value!r}; give true or false")
    return bool(found)


def _endpoint(name: str, value: Any) -> str:
    text = _text(name, value)
    if not re.fullmatch(r"https?://\S+", text):
        raise InputError(f"{name}: {text[:60]!r} is no address; give http://HOST:4318")
    return text


OPTIONS: dict[str, _Option] = {
    "dir": _Option(contract.DIR_VARIABLE, _path),
    "run": _Option("MWATCH_RUN", _word),
    "pod": _Option("MWATCH_POD", _word),
    "pod_uid": _Option("MWATCH_POD_UID", _word),
    "namespace": _Option("MWATCH_NAMESPACE", _word),
    "node": _Option("MWATCH_NODE", _word),
    "host": _Option("MWATCH_HOST", _text),
    "port": _Option("MWATCH_PORT", _port),
    "save": _Option("MWATCH_SAVE", _path),
    "policy": _Option("MWATCH_POLICY", _path),
    "evidence": _Option("MWATCH_EVIDENCE", _path),
    "token_file": _Option("MWATCH_TOKEN_FILE", _path),
    "mode": _Option("MWATCH_MODE", _mode),
    "otlp_endpoint": _Option("OTEL_EXPORTER_OTLP_ENDPOINT", _endpoint),
    "tensorboard": _Option("MWATCH_TENSORBOARD", _path),
    "tensorboard_notes": _Option("MWATCH_TENSORBOARD_NOTES", _path),
    "json_logs": _Option("MWATCH_JSON_LOGS", _flag),
    "until_final": _Option("MWATCH_UNTIL_FINAL", _flag),
}
CONFIG_VARIABLE = "MWATCH_CONFIG"
_JOB_VARIABLE = "MWATCH_JOB"


def resolve(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    hostname: Callable[[], str] = socket.gethostname,
) -> SidecarSettings:
    """`flags` by the names of OPTIONS, and `config`; None: not given. InputError in one line."""
    config = flags.get("config") or environ.get(CONFIG_VARIABLE) or None
    chosen = {} if config is None else _of_file(Path(config))
    for name, option in OPTIONS.items():
        if environ.get(option.variable):
            chosen[name] = option.read(f"${option.variable}", environ[option.variable])
        if flags.get(name) is not None:
            chosen[name] = option.read(f"--{name.replace('_', '-')}", flags[name])
    chosen.setdefault("dir", Path(DEFAULT_DIR))
    chosen.setdefault("pod", _safe(hostname()))
    chosen.setdefault("run", _safe(environ.get(_JOB_VARIABLE) or run_of(chosen["pod"])))
    return SidecarSettings(**chosen)


def run_of(pod: str) -> str:
    """The name of the job that a pod is of, as operators name pods."""
    return re.sub(_REPLICA.pattern + "$", "", pod) or pod


def _safe(name: str) -> str:
    return re.sub(r"[^\w.+/-]", "-", name)[:253] or "pod"


def _of_file(file: Path) -> dict[str, Any]:
    try:
        data = file.read_bytes()
    except OSError as error:
        words = f"{file}: cannot be read ({error.strerror}); check the path of --config"
        raise InputError(words) from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{file}: is too large for a configuration ({len(data)} bytes)")
    try:
        tree = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: is no TOML: {' '.join(str(error).split())}") from None
    for key in tree:
        if key not in OPTIONS:
            raise InputError(f"{file}: {key}: no such key; {_nearest(key)}")
    return {key: OPTIONS[key].read(f"{file}: {key}", value) for key, value in tree.items()}


def _nearest(key: str) -> str:
    near = get_close_matches(key.lower().replace("-", "_"), OPTIONS, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(OPTIONS)}"


assert {each.name for each in fields(SidecarSettings)} == set(OPTIONS)
