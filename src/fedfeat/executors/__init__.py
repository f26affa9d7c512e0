"""Executors: where clients' tasks run. Each yields results in cohort order."""
