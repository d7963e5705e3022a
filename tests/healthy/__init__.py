# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Odd but healthy runs with real processes under `mwatch run --act`: none may be restarted.

`runs.toml` is the table of runs, `odd_trainer.py` a trainer that does what a row says and trains
nothing, `runs.py` starts one and judges it. `make test-healthy` runs them all.
"""
