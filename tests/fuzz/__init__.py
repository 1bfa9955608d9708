"""Content of strangers: mutated files, requests and variables are answered by name, whatever they hold."""
