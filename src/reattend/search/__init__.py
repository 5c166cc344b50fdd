"""Hyper-parameter search by Optuna through Hydra's sweeper, on validation only."""
