# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of sidecar and controller, and its authenticated requests."""
