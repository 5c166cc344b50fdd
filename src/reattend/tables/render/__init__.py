"""Pages from evidence: nothing here computes a statistic."""
