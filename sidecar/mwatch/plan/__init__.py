# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a model needs of a cluster, in numbers: memory, batch, bubble, checkpoint, interval.

Pure arithmetic on a shape, a layout and a cluster. It cannot know what a kernel, an allocator or
a network really does: such figures are marked as estimates, and say what they were held against.
"""
