"""Make the runs of a campaign: see `fedfeat.evidence.command`."""

from fedfeat.evidence.command import main

if __name__ == "__main__":
    main()
