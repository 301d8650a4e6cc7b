"""`python -m ravnest` is the command line, where the console script `ravnest` is not on the path."""

from ravnest.cli.main import main

if __name__ == "__main__":
    main()
