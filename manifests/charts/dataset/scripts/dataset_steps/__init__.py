# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The steps that make a dataset for training, run one after the other by the chart's Job.

Standard library only, in the syntax of Python 3.8: they run in whatever image preprocesses. Every
step can be run again: what is whole is left alone, what is not is made anew, and what cannot be
made ends the step with a sentence and a code (1: try again, 2: no retry will help).
"""
