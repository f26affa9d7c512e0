"""Make the pages of results again: see `fedfeat.evidence.results_command`."""

from fedfeat.evidence.results_command import main

if __name__ == "__main__":
    main()
