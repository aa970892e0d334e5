"""Pure decisions: no HTTP library, no event loop, no socket, and never a look at the time."""
