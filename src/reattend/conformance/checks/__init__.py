"""The checks, one module per subject; each function with `@check` is found by walking."""
