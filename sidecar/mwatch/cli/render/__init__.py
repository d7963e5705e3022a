# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Terminal output of the commands: render reports and views as lines of text."""
