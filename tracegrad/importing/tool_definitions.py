"""The tools that a call was offered, as `gen_ai.tool.definitions` has them: a type, a name, and JSON schema."""

from collections.abc import Mapping
from typing import Any

from tracegrad.importing.foreign import Json
from tracegrad.importing.json_text import mapping, parsed, text

_SCHEMAS = ("parameters", "input_schema", "inputSchema", "parametersJsonSchema", "parameters_json_schema")


def tool_definitions(value: Any) -> list[Json]:
    """Of a list of tools, or of what has them by name (Langfuse). What is no tool is left out."""
    value = parsed(value)
    if isinstance(value, dict):
        named = [{"name": name} | dict(mapping(parsed(told))) for name, told in value.items()]
        return [tool for told in named for tool in _tools(told)]
    return [tool for told in value for tool in _tools(parsed(told))] if isinstance(value, list) else []


def is_tool_definition(value: Any) -> bool:
    """Whether this defines a tool, wherever it stands: Langfuse has them among the messages."""
    function = mapping(mapping(value).get("function"))
    return mapping(value).get("type") == "function" and "name" in function and "arguments" not in function


def _tools(told: Any) -> list[Json]:
    told = mapping(told)
    if isinstance(declared := told.get("functionDeclarations", told.get("function_declarations")), list):  # Gemini's
        return [tool for one in declared for tool in _tools(one)]
    function: Mapping[str, Any] = mapping(told.get("function")) or told
    if (name := text(function.get("name"))) is None:
        return []
    rest = {key: value for key, value in function.items() if key not in ("name", "type", "description", *_SCHEMAS)}
    schema = next((parsed(function[key]) for key in _SCHEMAS if function.get(key) is not None), None)
    tool: Json = {"type": text(told.get("type")) or "function", "name": name}
    if function.get("description") is not None:
        tool["description"] = function["description"]
    if schema is not None:
        tool["parameters"] = mapping(schema).get("jsonSchema", schema)
    return [tool | {key: value for key, value in rest.items() if value is not None}]
