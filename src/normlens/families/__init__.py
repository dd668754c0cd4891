"""The model families that are analysed exactly, with evidence: a tiny random-weight model of each type, checked."""
