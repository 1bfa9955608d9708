"""The columns of a table, and the steps that change them."""
