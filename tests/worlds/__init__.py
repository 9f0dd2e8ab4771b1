"""Small collections and models that tests train, search and read."""
