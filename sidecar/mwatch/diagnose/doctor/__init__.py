# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch doctor`: whether mwatch can do its work here, one line for each part of it."""
