"""Many clients in one fit."""
