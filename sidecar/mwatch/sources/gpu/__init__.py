# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs as the wrapper's records or NVML report them."""
