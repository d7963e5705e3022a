# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated Megatron job that prints what the real one prints, and breaks as real ones do.

The trainer and its world (`trainer`, `stage`, `faults`…) know nothing of mwatch. `watch` brings
their lines, probe records and witnesses to the engine as a sidecar would, and carries out what
it decides. `judge` holds the outcome against the truth.

    python -m sim --seed 123 --verbose     the story of one run
    python -m sim --runs 10000             the scorecard
"""
