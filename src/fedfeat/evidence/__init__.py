"""Claims decided by stored runs: queues of runs, what they measured, intervals, verdicts, pages."""
