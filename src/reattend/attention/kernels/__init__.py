"""Kernels of multi-head attention, one module each."""
