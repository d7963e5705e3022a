# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Commands that make changes: pause, mode, manual restart, stop, rollback, inject."""
