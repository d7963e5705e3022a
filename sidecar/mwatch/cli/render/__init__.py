# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What commands show on a terminal: lines of text made from reports and views."""
