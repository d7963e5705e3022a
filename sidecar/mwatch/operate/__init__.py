# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Commands by which a person changes something: pause, mode, manual restart, inject."""
