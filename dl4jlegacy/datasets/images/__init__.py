"""Images from folders and from tables that name them."""
