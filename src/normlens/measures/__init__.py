"""Measures: the table of them, what is asked of a run, the run itself, and its proof."""
