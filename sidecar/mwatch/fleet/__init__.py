# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All pods of all jobs as the controller sees them, one engine for each job."""
