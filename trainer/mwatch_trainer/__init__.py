# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What runs inside training containers: the wrapper `mwatch-run`, the probe, the checkpoint reader.

Standard library only, Python 3.8 syntax, and nothing of the package `mwatch`.
"""
