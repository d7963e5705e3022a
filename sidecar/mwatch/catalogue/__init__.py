# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The fault catalogue as data: one TOML file per topic, read by `mwatch.config.catalogue`.

Each entry says what a message means, how far it may be blamed and what fixes it. Where several
entries match one line a benign one wins, else the one whose match is longest: a specific entry
therefore spells out more of its message than the general one beside it.
"""
