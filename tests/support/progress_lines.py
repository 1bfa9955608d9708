"""Removes the lines of the live display, which a slow machine shows in tests too, from a command's stderr."""


def without_progress(text: str) -> str:
    """Return ``text`` without the lines of the live display."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if "ETA" not in line and not line.startswith(("starting", "waiting for ")))
