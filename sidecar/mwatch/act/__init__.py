# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The only code that changes anything outside of us. Each deed is bounded and can be done twice."""
