"""Who holds which examples."""
