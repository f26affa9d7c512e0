"""Make the runs of a campaign: see `fedfeat.evidence.campaign_command`."""

from fedfeat.evidence.campaign_command import main

if __name__ == "__main__":
    main()
