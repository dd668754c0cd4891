"""From sources to sequences: files of many formats to records, records to token ids with their categories."""
