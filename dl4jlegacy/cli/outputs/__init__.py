"""What commands print as JSON or text, and files that they write."""
