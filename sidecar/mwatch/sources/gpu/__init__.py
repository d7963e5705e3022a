# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a pod, from the wrapper's samples or from NVML."""
