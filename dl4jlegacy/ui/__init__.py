"""The dashboard: a web page and a REST interface to watch and stop a run (extra ``ui``)."""
