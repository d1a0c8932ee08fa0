"""Whether the arguments of a tool call fit what the request said of the tool.

Schemas come from agents. One that is none, or that refers to what is elsewhere, says nothing: nothing is fetched.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

LONGEST_QUOTE = 200


class ArgumentSchema:
    """The JSON schema of one tool's arguments."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema

    def misfit(self, arguments: Mapping[str, Any]) -> str | None:
        """What does not fit, in words; None where all fits, or where that cannot be told."""
        if self._validator is None:
            return None
        try:
            error = best_match(self._validator.iter_errors(arguments))
        except (Unresolvable, RecursionError, ValueError):  # ValueError: a pattern that is no regular expression
            return None
        return None if error is None else f"{error.json_path}: {error.message}"[:LONGEST_QUOTE]

    @cached_property
    def _validator(self) -> Any:
        validator = validator_for(self.schema, default=Draft202012Validator)
        try:
            validator.check_schema(self.schema)
        except (SchemaError, RecursionError):
            return None
        return validator(self.schema, registry=Registry())


def schemas(definitions: str) -> dict[str, ArgumentSchema]:
    """By tool name, the schemas in `gen_ai.tool.definitions` (JSON text)."""
    try:
        offered = orjson.loads(definitions)
    except orjson.JSONDecodeError:
        return {}
    found = {}
    for one in offered if isinstance(offered, list) else ():
        if not isinstance(one, dict):
            continue
        # Whoever follows the conventions has the function's fields beside the type; some nest them as in the request.
        function = one["function"] if isinstance(one.get("function"), dict) else one
        name, schema = function.get("name"), function.get("parameters")
        if isinstance(name, str) and isinstance(schema, dict):
            found[name] = ArgumentSchema(schema)
    return found


def as_object(arguments: Any) -> Mapping[str, Any] | None:
    """The arguments of a tool call as an object, also where that was written as a text; None where they are none.

    As `answer_faults` in the view `llm_calls` has it: no arguments at all are none, too.
    """
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return None
    return arguments if isinstance(arguments, dict) else None
