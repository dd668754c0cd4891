"""Files: written whole or not at all, sealed, on this machine or on an object store, and folders of arrays."""
