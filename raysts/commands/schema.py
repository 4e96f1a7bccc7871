"""``raysts schema``: the JSON schema of recipe files."""

import json

from raysts.commands.options import LOOK, Command, Result


def schema() -> Result:
    """Print the JSON schema of a recipe file.

    It has every option with its type, bounds, default and description.

    Returns:
        status, schema.
    """
    from raysts.recipes.recipe import Pipeline

    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"status": "done", "schema": {"$schema": dialect, **Pipeline.model_json_schema()}}


def _text(result: Result) -> str:
    return json.dumps(result["schema"], indent=2, ensure_ascii=False)


COMMANDS = (Command("schema", schema, _text, "raysts schema", LOOK),)
