# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a model needs of a cluster: memory, batch, bubble, checkpoint, save interval.

Pure arithmetic on a shape, a layout and a cluster. Speed and failures are estimates, marked so.
"""
