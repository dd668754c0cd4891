"""One module per paper: its tables and figures measured on any encoder, beside the published numbers."""
