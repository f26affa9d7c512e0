"""Clients' turns on the nodes of a Ray cluster."""
