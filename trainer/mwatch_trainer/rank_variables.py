# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The environment variables by which launchers give a process its rank, by preference."""

from __future__ import annotations

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")

SLURM_STEP = "SLURM_STEP_ID"
"""Slurm's other variables identify a task only if this is set: the batch script has them too."""
SLURM_RANKS = ("SLURM_PROCID",)
SLURM_LOCAL_RANKS = ("SLURM_LOCALID",)
SLURM_WORLD_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
