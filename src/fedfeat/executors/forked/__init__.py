"""Clients' turns in forked processes of one machine."""
