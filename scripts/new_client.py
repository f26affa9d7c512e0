"""How fast a client that joins afterwards learns: see `fedfeat.new_client`."""

from fedfeat.new_client import main

if __name__ == "__main__":
    main()
