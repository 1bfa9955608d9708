"""What a command says on stderr besides its progress, which comes every few seconds, on a slow machine even here."""


def without_progress(text: str) -> str:
    """Return ``text`` without the lines of the live display."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if "ETA" not in line and not line.startswith(("starting", "waiting for ")))
