# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The snapshot that a sidecar serves to a controller, and its JSON form."""
