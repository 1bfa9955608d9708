"""Access to this machine: clock, files, console, secrets, listening sockets, threads, subprocesses, strict JSON."""
