"""An agent that answers word problems with a calculator. Plain `openai` SDK; run it as

python examples/calculator_agent.py "Ann has 12 pens and buys 7 more. How many pens now?"
"""

import ast
import json
import operator
import os
import sys

from openai import OpenAI

MODEL = os.environ.get("MODEL", "policy")
TEMPERATURE = float(os.environ.get("TEMPERATURE", "1"))
MAX_TURNS = 4
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
FUNCTION = {"name": "calculator", "description": "Evaluate an arithmetic expression.", "parameters": PARAMETERS}
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
SIGNS = {ast.UAdd: operator.pos, ast.USub: operator.neg}
MISTAKES = (ValueError, SyntaxError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError)


def evaluate(node: ast.expr) -> float:
    """The value of a parsed expression that holds only numbers, + - * / and parentheses."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=sign, operand=operand):
            return SIGNS[type(sign)](evaluate(operand))
        case ast.BinOp(left=left, op=sign, right=right):
            return OPERATIONS[type(sign)](evaluate(left), evaluate(right))
    raise ValueError("not arithmetic")


def calculator(arguments: str) -> str:
    """What the tool answers to arguments as the model wrote them: a number with at most two decimals, or `error`."""
    try:
        value = round(evaluate(ast.parse(json.loads(arguments)["expression"].strip(), mode="eval").body), 2)
        return str(int(value)) if value == int(value) else str(value)
    except MISTAKES:
        return "error"


def answer(question: str) -> str:
    """Ask the model, calling the calculator for it, until it answers in words."""
    client = OpenAI()
    tools = [{"type": "function", "function": FUNCTION}]
    messages = [{"role": "system", "content": "Use the calculator."}, {"role": "user", "content": question}]
    for _ in range(MAX_TURNS):
        completion = client.chat.completions.create(
            model=MODEL, messages=messages, tools=tools, temperature=TEMPERATURE, max_tokens=48
        )
        message = completion.choices[0].message
        if not message.tool_calls:
            break
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": calculator(call.function.arguments)})
    return " ".join((message.content or "").split())


if __name__ == "__main__":
    print(answer(sys.argv[1]))
