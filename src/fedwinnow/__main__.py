"""`python -m fedwinnow` is `fedwinnow`."""

from fedwinnow.cli import main

if __name__ == "__main__":
    main()
