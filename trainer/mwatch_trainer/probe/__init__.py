# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The probe: a thread inside each rank. Imports only this package and `contract`."""
