# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What lies in a save folder, which checkpoints are complete, and their history."""
