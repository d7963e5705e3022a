# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes of one node for the tests, in namespaces of its own."""
