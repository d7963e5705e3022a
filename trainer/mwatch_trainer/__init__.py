# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The wrapper that will run beside the trainer, inside any training container.

It is a guest there: standard library only, Python 3.8 syntax, nothing from `mwatch`.
There is nothing in it yet.
"""
