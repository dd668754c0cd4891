"""Texts to tensors and back: the only home of length limits, padding, words and readable tokens."""
