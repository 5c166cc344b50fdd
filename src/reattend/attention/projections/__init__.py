"""Projections of queries and keys, one module each."""
