# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Manifests of training jobs as text and as trees: adds mwatch to them and takes it away; pure."""
