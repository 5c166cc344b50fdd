"""Attention Free Transformers: averages of values that keys and learned position biases weigh, without dot products."""
