"""Import of networks written by other libraries."""
