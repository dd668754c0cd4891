"""Which model families are analysed exactly, with evidence: tiny random-weight models of every type, checked one by one."""
