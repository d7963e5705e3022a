# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The code that runs in training containers: the wrapper `mwatch-run`, probe, checkpoint reader.

Standard library only, Python 3.8 syntax, no import of the package `mwatch`.
"""
