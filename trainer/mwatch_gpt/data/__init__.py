# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m mwatch_gpt.data`: converts text into Megatron's indexed datasets."""
