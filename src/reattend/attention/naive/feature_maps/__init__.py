"""Plain twins of `reattend.attention.feature_maps`."""
