"""One module for each SDK: what is called there, as its own users call it."""
