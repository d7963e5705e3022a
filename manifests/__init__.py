# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes objects and charts, and what makes the parts of them that follow from other files."""
