"""Statistics over corpora: one streaming pass, mergeable counts, any engine, the same numbers."""
