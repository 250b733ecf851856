"""Grading: what a problem asks, each student's inputs, what is right, what is wrong and why.

Arrays are graded, never code. Pure functions on numpy; neither torch nor Django.
"""
