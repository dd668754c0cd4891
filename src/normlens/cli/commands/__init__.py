"""One module per command: its function has the name of the module. A new module is a new command."""
