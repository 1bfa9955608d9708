"""Output of the commands as JSON or text, and the files that they write."""
