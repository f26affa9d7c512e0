"""One run and its loop of rounds."""
