# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What several detectors use: progress, stalls, culprits, root causes, evidence."""
