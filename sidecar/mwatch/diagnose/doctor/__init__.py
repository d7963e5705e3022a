# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch doctor`: checks whether mwatch can work here, with one line per check."""
