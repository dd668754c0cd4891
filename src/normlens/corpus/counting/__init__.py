"""From sequences to statistics: a batch goes through the model, and each site's numbers are counted as it ends."""
