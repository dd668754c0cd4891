"""Word alignment: maps of words, links, symmetrization, formats and AER; all but the maps need no torch."""
