# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Code that several detectors share: progress, stalls, culprits, root causes, evidence."""
