# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller at the size of a large job, on a real control plane with simulated nodes."""
