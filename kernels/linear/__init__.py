"""Attention without the softmax: linear recurrences, whose memory of the past has a fixed size."""
