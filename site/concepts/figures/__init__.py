"""Figures: pure functions from a query string to HTML or SVG."""
