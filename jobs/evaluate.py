"""Evaluate a model as a Ray job. Takes the arguments of ``raysts evaluate``.

ray job submit --working-dir . -- python jobs/evaluate.py MODEL --tasks stsb
"""

import sys

from raysts.cli import main

if __name__ == "__main__":
    main(["evaluate", *sys.argv[1:]])
