# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence of incidents: collects it, stores it, and copies it off the pod."""
