# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Saves and loads checkpoints with Megatron's distributed checkpointing (torch_dist).

`iter_0000010/` contains the shards and, written last, `metadata.json`; then the tracker is updated,
then the success line is printed. A checkpoint has weights, optimizer, gradient scaler, schedule,
random state and data position, so a resumed run computes what the interrupted one would have
computed.
"""

from __future__ import annotations

import argparse
import queue
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy
import torch
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.rerun_state_machine import get_rerun_state_machine

from mwatch_gpt import progress
from mwatch_gpt.console import now, print_rank_0
from mwatch_gpt.run_state import RunState


def _rng_state() -> Any:
    """Collect the random generators' states, one per tensor-parallel rank."""
    state = {
        "random_rng_state": random.getstate(),
        "np_rng_state": numpy.random.get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": torch.cuda.get_rng_state(),
        "rng_tracker_states": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }
    return ShardedObject(
        "rng_state",
        [state],
        (1, parallel_state.get_tensor_model_parallel_world_size()),
        (0, parallel_state.get_tensor_model_parallel_rank()),
        replica_id=parallel_state.get_data_parallel_rank(),
    )


def _restore_rng(states: list[dict[str, Any]]) -> None:
    (state,) = states
    random.setstate(state["random_rng_state"])
    numpy.random.set_state(state["np_rng_state"])
    torch.set_rng_state(state["torch_rng_state"])
    torch.cuda.set_rng_state(state["cuda_rng_state"])
    if state["rng_tracker_states"]:
        tensor_parallel.get_cuda_rng_tracker().set_states(state["rng_tracker_states"])


_Bucket = tuple[Any, ...]


class InProcessStrategy(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Writes this rank's part of a checkpoint in the rank's own process; the files are the same.

    Megatron's torch_dist strategy writes from freshly forked processes and keeps a helper process
    for their results, which costs 7 to 18 seconds at a process's first save.
    """

    def __init__(self, writing: Callable[[str], AbstractContextManager[None]]) -> None:
        """`writing`: context manager, entered with each file's path while the file is written."""
        super().__init__("torch_dist", 1, thread_count=1)
        self._writing = writing
        # The writer uses this queue while planning; by default it is a server in another process.
        filesystem_async._results_queue = queue.Queue()

    def _get_save_and_finalize_callbacks(self, writer: Any, planned: Any) -> Any:
        request = super()._get_save_and_finalize_callbacks(writer, planned)
        if request.async_fn is None:  # this rank has nothing to write
            return request

        def write(rank: int, buckets: list[_Bucket], results: queue.Queue[Any]) -> None:
            results.put(self._write(writer, buckets))

        return request._replace(async_fn=write)

    def _write(self, writer: Any, buckets: list[_Bucket]) -> Any:
        """Return results by bucket, or the error to report to the other ranks."""
        transforms = [writer.transforms] if hasattr(writer, "transforms") else []
        written = {}
        for number, bucket in enumerate(buckets):
            answers: queue.Queue[tuple[int, Any]] = queue.Queue()
            counts: queue.Queue[int] = queue.Queue()
            counts.put(number)
            with self._writing(str(bucket[0])):
                filesystem_async.FileSystemWriterAsync.write_preloaded_data(
                    transforms, number, bucket, answers, counts, use_fsync=True
                )
            _, answer = answers.get()
            if isinstance(answer, Exception):
                return answer
            written[number] = answer
        return written


TRACKER = "latest_checkpointed_iteration.txt"
_SHARDING = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
_NOT_SAVED = frozenset({"rank", "local_rank", "fault", "fault_state", "load", "ckpt_step"})


def folder_of(root: str, iteration: int) -> Path:
    return Path(root) / f"iter_{iteration:07d}"


def save_checkpoint(run: RunState, data_iterator: Any = None) -> None:
    """Save. `data_iterator` is given if a step is to be rerun after a restart."""
    args = run.args
    with progress.during("saving"):
        if not run.saves.is_idle:
            print_rank_0(
                "WARNING: Starting a checkpoint save before previous has finished. "
                "Consider increasing the checkpoint interval."
            )
        where = f"at iteration {run.iteration:7d} to {args.save}"
        print_rank_0(f"[{now()}] saving checkpoint {where} in {args.ckpt_format} format")
        folder = folder_of(args.save, run.iteration)
        if args.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
        request = dist_checkpointing.save(
            _state_to_save(run, data_iterator),
            str(folder),
            _strategy(run),
            async_sharded_save=args.async_save,
            content_metadata=dict(_SHARDING),
        )
        iteration = run.saved_at = run.iteration
        if request is None:
            torch.distributed.barrier()
            _conclude(run, iteration)
        else:
            request.add_finalize_fn(lambda: _conclude(run, iteration))
            run.saves.start(request)
            print_rank_0(f"  [{now()}] scheduled an async checkpoint save {where}")
        torch.distributed.barrier()


def _conclude(run: RunState, iteration: int) -> None:
    """Make this the checkpoint to resume from, once all ranks have written it."""
    args = run.args
    if args.rank == 0:
        tracker = Path(args.save) / TRACKER
        previous = tracker.read_text() if tracker.exists() else ""
        tracker.write_text(str(iteration))
        tensor = args.tensor_model_parallel_size
        print_rank_0(
            f"  [{now()}] successfully saved checkpoint from iteration {iteration:7d} "
            f"to {args.save} [ t 1/{tensor}, p 1/1 ]"
        )
        if args.async_save:
            run.progress_log.written(iteration)
        if args.save_retain_interval and previous.isdigit():
            _drop(args, int(previous), iteration)
    run.faults.saved(folder_of(args.save, iteration), iteration)


def _drop(args: argparse.Namespace, previous: int, iteration: int) -> None:
    if not previous or previous == iteration or previous % args.save_retain_interval == 0:
        return
    where = f"checkpoint from iteration {previous:7d} at {args.save}"
    try:
        shutil.rmtree(folder_of(args.save, previous))
        print_rank_0(f"  [{now()}] successfully deleted {where}")
    except OSError as error:
        print_rank_0(f'  encountered exception "{error}" when trying to delete {where}')


def _strategy(run: RunState) -> Any:
    iteration = run.iteration  # copied: training continues while an asynchronous writer runs
    strategy = InProcessStrategy(lambda path: run.faults.writing(path, iteration))
    if run.args.data_parallel_size == 1:
        return strategy
    # Each data-parallel rank writes a share of the checkpoint.
    return FullyParallelSaveStrategyWrapper(strategy, parallel_state.get_data_parallel_group())


def _state_to_save(run: RunState, data_iterator: Any) -> dict[str, Any]:
    args = run.args
    kept = {name: value for name, value in vars(args).items() if name not in _NOT_SAVED}
    state = _sharded_state(
        run, with_optimizer=not args.no_save_optim, with_random=not args.no_save_rng
    )
    state |= {
        "args": argparse.Namespace(**kept),
        "checkpoint_version": 3.0,
        "iteration": run.iteration,
        "num_floating_point_operations_so_far": run.flops,
    }
    rerun = get_rerun_state_machine().state_dict(data_iterator, args.ckpt_format)
    return state | ({"rerun_state_machine": rerun} if rerun else {})


def _sharded_state(
    run: RunState, *, with_optimizer: bool, with_random: bool, is_loading: bool = False
) -> dict[str, Any]:
    metadata = {**_SHARDING, "dp_cp_group": parallel_state.get_data_parallel_group()}
    state: dict[str, Any] = {"model": run.bare_model.sharded_state_dict(metadata=metadata)}
    if with_optimizer:
        state["optimizer"] = run.optimizer.sharded_state_dict(
            state, is_loading=is_loading, metadata=metadata
        )
        state["opt_param_scheduler"] = run.schedule.state_dict()
    if with_random:
        state["rng_state"] = _rng_state()
    return state


def load_checkpoint(run: RunState) -> None:
    args = run.args
    with progress.during("loading"):
        root, iteration = _find(args)
        if iteration is None:
            return
        folder = str(folder_of(root, iteration))
        common = dist_checkpointing.load_common_state_dict(folder)
        print_rank_0(
            "sharded_state_dict metadata loaded from the checkpoint: "
            f"{dist_checkpointing.load_content_metadata(preloaded_state_dict=common)}"
        )
        print_rank_0(f" loading distributed checkpoint from {root} at iteration {iteration}")
        saved = common["args"]
        whole = not args.finetune
        same_layout = saved.tensor_model_parallel_size == args.tensor_model_parallel_size
        wanted = _sharded_state(
            run,
            with_optimizer=whole and not args.no_load_optim and not saved.no_save_optim,
            with_random=whole and same_layout and not args.no_load_rng and not saved.no_save_rng,
            is_loading=True,
        )
        _add_rerun(wanted, common, args, saved)
        _take(run, wanted, dist_checkpointing.load(wanted, folder))
        torch.distributed.barrier()
        print_rank_0(
            f"  successfully loaded checkpoint from {root} "
            f"[ t 1/{args.tensor_model_parallel_size}, p 1/1 ] at iteration {run.iteration}"
        )


def _find(args: argparse.Namespace) -> tuple[str, int | None]:
    """Return the folder and iteration to load; None as iteration: start from random weights."""
    root, tracker = args.load, Path(args.load or "") / TRACKER
    if args.pretrained_checkpoint and not (root and tracker.exists()):
        print_rank_0(
            f"Checkpoint file not found in load directory {root} attempting to finetune "
            f"with checkpoint in {args.pretrained_checkpoint}"
        )
        root, tracker = args.pretrained_checkpoint, Path(args.pretrained_checkpoint) / TRACKER
        args.finetune = True
    if args.ckpt_step:
        return root, args.ckpt_step
    if tracker.exists():
        text = tracker.read_text().strip()
        if not text.isdigit():
            print_rank_0(f"ERROR: Invalid metadata file {tracker}. Exiting")
            sys.exit()
        return root, int(text)
    print_rank_0(f"WARNING: could not find the metadata file {tracker}")
    print_rank_0("    will not load any checkpoints and will start from random")
    if args.exit_on_missing_checkpoint:
        print_rank_0(">> '--exit-on-missing-checkpoint' set ... exiting. <<")
        torch.distributed.barrier()
        sys.exit()
    return root, None


def _add_rerun(
    wanted: dict[str, Any], common: dict[str, Any], args: argparse.Namespace, saved: Any
) -> None:
    """Add the state of a step to be rerun, if the number of ranks is unchanged."""
    machine = get_rerun_state_machine()
    if args.finetune or saved.world_size != args.world_size:
        return
    if machine.validate_state_dict(common.get("rerun_state_machine")):
        wanted["rerun_state_machine"] = machine.state_dict(None, args.ckpt_format, force=True)


def _take(run: RunState, wanted: dict[str, Any], loaded: dict[str, Any]) -> None:
    args, saved = run.args, loaded["args"]
    run.bare_model.load_state_dict(loaded["model"])
    print_rank_0(f" checkpoint version {loaded['checkpoint_version']}")
    if "optimizer" in wanted:
        state = loaded["optimizer"]
        # Megatron omits the step count while it is zero, but torch requires it.
        inner = state.get("optimizer", state)["state"]
        inner.setdefault("common_step", torch.tensor(0.0))
        run.optimizer.load_state_dict(state)
        run.schedule.load_state_dict(loaded["opt_param_scheduler"])
    elif args.fp16 or args.bf16:
        run.optimizer.reload_model_params()
    if not args.finetune:
        run.iteration = loaded["iteration"]
        run.flops = loaded["num_floating_point_operations_so_far"]
        for name in ("consumed_train_samples", "consumed_valid_samples", "skipped_train_samples"):
            setattr(args, name, getattr(saved, name))
    if "rerun_state_machine" in wanted:
        get_rerun_state_machine().load_state_dict(loaded["rerun_state_machine"])
    if "rng_state" in wanted:
        _restore_rng(loaded["rng_state"])
