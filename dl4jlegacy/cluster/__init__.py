"""A run spread over processes and machines: where it is registered, its master, its workers."""
