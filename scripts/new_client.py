"""How fast a client that joins afterwards learns: see `fedfeat.commands.joining`."""

from fedfeat.commands.joining import main

if __name__ == "__main__":
    main()
