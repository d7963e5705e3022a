# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Add mwatch to manifests of training jobs, given as text or trees, and remove it again; pure."""
