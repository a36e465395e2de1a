"""Transport: the event loop, sockets and rings; it moves bytes and does not interpret them."""
