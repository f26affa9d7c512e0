"""Clients' tasks in forked processes of one machine."""
