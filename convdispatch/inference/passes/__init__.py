"""Passes over a graph: each rewrites it into one that computes the same, faster."""
