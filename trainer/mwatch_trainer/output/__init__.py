# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's output: passed on byte for byte, and copied into the log."""
