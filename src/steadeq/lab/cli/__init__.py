"""The command line; each command is a module, imported when it is called."""
