# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch sidecar`: its loop, its HTTP pages and the buffer of events for controllers."""
