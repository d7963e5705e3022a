# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""mwatch: watches Megatron-LM training runs."""

__version__ = "0.1.0"
