"""A whole run: engines that count chunks into shards, folders that say what is whose, tables written and read back."""
