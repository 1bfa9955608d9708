"""Import of networks that other libraries have written."""
