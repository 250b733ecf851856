"""Grading: problems, assignments and submissions as rows, and how a submission becomes a verdict.

`models` the rows · `problems`, `assignments`, `submissions`, `work` what happens to them · `judging` the only
module that computes · `webhooks` who is told.
"""
