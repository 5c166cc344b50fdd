"""Continuing sequences with a trained autoregressive model."""
