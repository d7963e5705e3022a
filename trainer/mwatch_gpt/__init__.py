# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A small real trainer: Megatron-core's GPT, optimizer, datasets and checkpoints, on any machine.

It really trains (on CPU over gloo, on GPUs over NCCL), prints what Megatron-LM prints, and can
inject the failures of clusters. It knows nothing of mwatch.
"""
