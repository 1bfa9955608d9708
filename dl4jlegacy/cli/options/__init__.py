"""Options and their values: declared, read from the command line, and turned into a Conf."""
