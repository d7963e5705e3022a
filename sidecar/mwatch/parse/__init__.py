# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Text to events. Knows what trainers print; opens no file and reads no clock."""
