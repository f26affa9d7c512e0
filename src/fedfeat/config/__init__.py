"""Values that are refused before torch is imported."""
