# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m mwatch_gpt`, or `torchrun --nproc-per-node 2 -m mwatch_gpt`: train a small GPT.

Arguments are parsed before torch is imported, so that `--help` and usage errors respond at once.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import time

from mwatch_gpt import arguments

_NEEDED = ("torch", "megatron.core")


def main() -> None:
    started = time.time()
    args = arguments.parse(sys.argv[1:])
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        sys.exit(f"mwatch_gpt: {missing[0]} is not installed: pip install 'mwatch[demo]'")
    if args.distributed_backend == "gloo":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # gloo cannot reduce GPU tensors
    # Modules stay loaded, so exclude them from garbage collection, which would cost half a second
    # here and a second at exit.
    gc.disable()
    from mwatch_gpt import device

    # `prepare` must load Megatron for the chosen device before any of our modules imports it.
    chosen = device.prepare()
    from mwatch_gpt.training import pretrain

    gc.freeze()
    gc.enable()
    pretrain(args, chosen, started)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    main()
