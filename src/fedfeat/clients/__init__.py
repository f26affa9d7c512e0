"""One client's turn, and everything that it needs."""
