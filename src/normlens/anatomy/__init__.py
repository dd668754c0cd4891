"""The only place that knows transformers' module trees: what a model's attention blocks are made of."""
