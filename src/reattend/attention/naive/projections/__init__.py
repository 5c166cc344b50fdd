"""Plain twins of `reattend.attention.projections`."""
