"""Every fault at every position, on real sockets."""
