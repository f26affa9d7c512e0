"""From a configuration to parts, and the console commands."""
