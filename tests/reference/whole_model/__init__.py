"""A slow reference of every part of an explanation, written from the design alone."""
