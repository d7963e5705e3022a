# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What runs inside other people's training containers, where mwatch is a guest.

Standard library only, Python 3.8 syntax, and nothing of the package `mwatch`: it must work in any
training image. So far it can look at checkpoints; the wrapper around the trainer will live here.
"""
