"""Plain twins of `reattend.attention.kernels`."""
