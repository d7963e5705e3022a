# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What every source is built on: worker threads, JSON files, status monitoring."""
