"""Train the members of a system, without combining them, as a Ray job. Takes the arguments of ``raysts run``.

The name is that of member stages alone (``nli-ct``); ``jobs/distill.py --from-run`` makes a student of them.

ray job submit --working-dir . -- python jobs/train_ensemble.py nli-ct --set members=10
"""

import contextlib
import io
import sys

from raysts.cli import main
from raysts.commands.parser import parse
from raysts.errors import InputError
from raysts.recipes.names import STAGES, pipeline

if __name__ == "__main__":
    with contextlib.suppress(InputError, KeyError), contextlib.redirect_stdout(io.StringIO()):  # the command says it
        name = parse(["run", *sys.argv[1:]])[1]["recipe"]
        system = pipeline(name)
        if system.combine or system.post:
            print(
                f"jobs/train_ensemble.py: '{name}' is more than member stages: it must be stages joined by '-' "
                f"({', '.join(STAGES)}); jobs/run.py runs whole systems",
                file=sys.stderr,
            )
            sys.exit(2)
    main(["run", *sys.argv[1:]])
