"""Search batch size and learning rate of GaussCSE as a Ray job. Takes the arguments of ``raysts tune gausscse``.

ray job submit --working-dir . -- python jobs/tune_gausscse.py --storage /shared/raysts-storage
"""

import sys

from raysts.cli import main

if __name__ == "__main__":
    main(["tune", "gausscse", *sys.argv[1:]])
