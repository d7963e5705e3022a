# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Capacity planning: memory, batch, pipeline bubble, checkpoint size and save interval of a model.

Pure arithmetic on a shape, a layout and a cluster. Speed and failures are marked as estimates.
"""
