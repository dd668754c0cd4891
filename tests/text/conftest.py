"""A busy machine must not fail a law: no deadlines where a tokenizer is behind the examples."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
