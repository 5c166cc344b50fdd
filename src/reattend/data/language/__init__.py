"""Sequences of tokens that a model continues: text by bytes or words, images by sub-pixels."""
