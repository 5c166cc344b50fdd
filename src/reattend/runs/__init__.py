"""A run on disk: its identity, claim, status, metrics, checkpoints, result and trained model."""
