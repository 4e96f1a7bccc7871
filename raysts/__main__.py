"""``python -m raysts``."""

from raysts.cli import main

if __name__ == "__main__":
    main()
