"""Train the members of a system, without combining them, as a Ray job. Takes the arguments of ``raysts run``.

The name is that of member stages alone (``nli-ct``); ``jobs/distill.py --from-run`` makes a student of them.

ray job submit --working-dir . -- python jobs/train_ensemble.py nli-ct --set members=10
"""

import sys

from raysts.cli import main
from raysts.errors import InputError
from raysts.recipes.names import STAGES, parse

if __name__ == "__main__":
    for name in [argument for argument in sys.argv[1:2] if not argument.startswith("-")]:
        try:
            found = parse(name.partition("@")[0])
        except InputError:
            continue  # the command says what is wrong
        if found.combine or found.post:
            print(
                f"jobs/train_ensemble.py: '{name}' is more than member stages: it must be stages joined by '-' "
                f"({', '.join(STAGES)}); jobs/run.py runs whole systems",
                file=sys.stderr,
            )
            sys.exit(2)
    main(["run", *sys.argv[1:]])
