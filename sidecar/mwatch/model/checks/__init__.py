# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What checks of manifests and of running jobs look at, and what they return."""
