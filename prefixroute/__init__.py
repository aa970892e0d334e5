"""Send each LLM request to the replica that already holds its prompt's prefix."""
