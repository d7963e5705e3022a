# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m mwatch_gpt.data`: text into Megatron's indexed datasets."""
