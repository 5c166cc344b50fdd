"""Twins of the Attention Free Transformers."""
