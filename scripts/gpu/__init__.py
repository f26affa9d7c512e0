"""The parts of `gpu_report.py`, one a module, and what they share."""
