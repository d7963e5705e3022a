# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Starts the probe in the ranks of a training job; `mwatch-run` puts this folder on PYTHONPATH.

Python imports the first `sitecustomize` it finds, so this one removes itself and imports the next.
If the probe fails, the program starts regardless. A Python started with -E, -I or -S ignores it.
"""

from __future__ import annotations

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _load_package() -> None:
    """Load the package around this file.

    Not through `sys.path`: other files there must not come before the standard library.
    """
    from _frozen_importlib import _load  # type: ignore[attr-defined]
    from _frozen_importlib_external import PathFinder

    root = os.path.dirname(os.path.dirname(_FOLDER))
    spec = PathFinder.find_spec("mwatch_trainer", [root])
    if spec is not None:
        _load(spec)


def _start_probe() -> None:
    try:
        _start_in_a_rank()
    except Exception:
        return  # training goes on without the probe


def _start_in_a_rank() -> None:
    folder = os.environ.get("MWATCH_DIR")
    if not folder or os.environ.get("MWATCH_PROBE") == "0":
        return
    _load_package()
    from mwatch_trainer.probe import rank_identity

    command = rank_identity.command_of_this_process()
    kind = rank_identity.classify(os.environ, os.getpid(), command)
    if kind == rank_identity.RANK:
        from mwatch_trainer.probe import probe

        probe.start(folder)
    elif kind == rank_identity.MAYBE_RANK:
        rank_identity.start_with_torch(folder)
    else:
        package = "mwatch_trainer"
        for name in (f"{package}.probe.rank_identity", f"{package}.probe", package):
            del sys.modules[name]


def _import_the_next() -> None:
    """Import the next `sitecustomize`; its errors are left to Python to report."""
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != _FOLDER]
    me = sys.modules.pop(__name__)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault(__name__, me)  # importlib looks this name up afterwards


if __name__ == "sitecustomize":
    _start_probe()
    _import_the_next()
