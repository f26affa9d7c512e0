"""Make the runs of a campaign: see `fedfeat.commands.campaign`."""

from fedfeat.commands.campaign import main

if __name__ == "__main__":
    main()
