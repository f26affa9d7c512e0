"""JSON schemas of configuration files, by which editors complete keys and show errors while typing."""
