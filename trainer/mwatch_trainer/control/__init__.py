# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The unix socket by which a sidecar asks the wrapper for dumps and restarts."""
