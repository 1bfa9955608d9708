"""Exit status 0 if the models of this container are served, 1 if not: what Docker asks every few seconds."""

import sys
import urllib.error
import urllib.request

_SECONDS = 2.0


def main() -> int:
    """Return the exit status."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    ask = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with ask.open(f"http://127.0.0.1:{port}/health", timeout=_SECONDS) as answer:
            return 0 if answer.status == 200 else 1
    except (OSError, urllib.error.URLError) as exc:
        sys.stdout.write(f"the models are not served at port {port}: {exc}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
