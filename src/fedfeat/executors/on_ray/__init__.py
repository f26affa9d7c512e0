"""Clients' tasks on the nodes of a Ray cluster."""
