"""A busy machine must not fail a law: no deadlines, and fewer examples where a model or tokenizer is behind them."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
