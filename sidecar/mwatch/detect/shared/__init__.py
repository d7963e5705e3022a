# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What several detectors need: progress, patience, ranks, root causes, evidence."""
