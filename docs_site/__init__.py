# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation site: what mkdocs needs besides the pages in `docs/`."""
