# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A small real trainer: Megatron-core's GPT, optimizer, datasets and checkpoints, on any machine.

It trains for real (on CPU over gloo, on GPUs over NCCL), prints what Megatron-LM prints, and can
inject typical cluster failures. It does not depend on mwatch.
"""
