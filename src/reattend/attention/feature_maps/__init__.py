"""Feature maps of the linear kernel, one module each."""
