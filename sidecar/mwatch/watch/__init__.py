# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One run seen from one volume: shared by the sidecar and by `mwatch run`."""
