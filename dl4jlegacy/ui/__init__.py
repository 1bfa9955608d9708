"""The dashboard: a page and a REST interface from which a run is watched, and stopped (extra ``ui``)."""
