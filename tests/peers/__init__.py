"""Figures that the original authors' code computed, compared with normlens.

`minilm.npz`: all-MiniLM-L6-v2 (the embedded model) in float32, keys `<text>/<source>/<quantity>`, `TEXTS` with the
tokenizer's defaults. None of the authors' code is part of this project.
"""
