# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A small real trainer: Megatron-core's GPT, optimizer, datasets and checkpoints, on any machine.

It trains in earnest (on CPU over gloo, on GPUs over NCCL), prints what Megatron-LM prints, and can
be told to fail in the ways that clusters fail. It knows nothing of mwatch.
"""
