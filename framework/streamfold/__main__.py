"""``python -m streamfold``."""

from streamfold.cli import main

if __name__ == "__main__":
    main()
