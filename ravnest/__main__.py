"""`python -m ravnest`: the command line, where the console script is not on the path."""

from ravnest.cli.main import main

if __name__ == "__main__":
    main()
