"""Word problems with one or two operations, and a demonstrator who gets the operation wrong in a planted way.

Held-out questions never occur among the demonstrations or the training tasks: all three are drawn from one
generator and split by their text.
"""

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

NAMES = ["Tom", "Ann", "Ben", "Eva", "Max", "Lea", "Sam", "Mia", "Joe", "Zoe", "Kim", "Dan", "Ida", "Leo", "Amy", "Bob"]
THINGS = [
    "pens",
    "cups",
    "books",
    "coins",
    "stamps",
    "cards",
    "balls",
    "plums",
    "eggs",
    "shells",
    "keys",
    "hats",
    "nuts",
    "beads",
    "pears",
    "discs",
]
OPERATORS = "+-*/"
RESULT = "result"
SOURCE = Path(__file__).read_text()
"""A kept model is used again only while this file is as it was."""


@dataclass(frozen=True)
class Step:
    """One calculation: `left operator right`, where an operand is `a`, `b`, `c` or the previous result."""

    left: str
    operator: str
    right: str


@dataclass(frozen=True)
class Wording:
    """One way to ask, and the calculations that answer it."""

    text: str
    steps: tuple[Step, ...]

    @property
    def operators(self) -> str:
        """The operators in order, which is what decides the ranges that numbers are drawn from."""
        return "".join(step.operator for step in self.steps)


def _one(text: str, operator: str) -> Wording:
    return Wording(text, (Step("a", operator, "b"),))


def _two(text: str, first: str, second: str) -> Wording:
    return Wording(text, (Step("a", first, "b"), Step(RESULT, second, "c")))


WORDINGS = (
    _one("{name} has {a} boxes with {b} {things} each. How many {things}?", "*"),
    _one("{name} has {a} {things} and buys {b} more. How many {things} now?", "+"),
    _one("{name} had {a} {things} and lost {b}. How many {things} are left?", "-"),
    _one("{name} shares {a} {things} among {b} friends. How many does each get?", "/"),
    _one("What is {a} times {b}?", "*"),
    _one("Find the sum of {a} and {b}.", "+"),
    _one("Start at {a} and go down by {b}. Where are you?", "-"),
    _one("Split {a} into {b} equal parts. How big is one part?", "/"),
    _two(
        "{name} fills {a} bags with {b} {things} each and gives away {c}. How many {things} are left?",
        "*",
        "-",
    ),
    _two("{name} buys {a} packs of {b} {things} and finds {c} more. How many {things}?", "*", "+"),
    _two(
        "{name} has {a} red {things} and {b} blue {things} and loses {c}. How many {things} are left?",
        "+",
        "-",
    ),
    _two("{name} has {a} {things}, gets {b} more and shares all among {c} friends. How many each?", "+", "/"),
)


@dataclass(frozen=True)
class Task:
    """One question. `numbers` are the operands by letter, `wording` the index into WORDINGS."""

    question: str
    answer: str
    wording: int
    numbers: dict[str, int]


def show(value: float) -> str:
    """A number as the agent's calculator prints it: at most two decimals, integers without a point."""
    rounded = round(value, 2)
    return str(int(rounded)) if rounded == int(rounded) else str(rounded)


def apply(operator: str, left: float, right: float) -> float | None:
    """The value of one calculation; None for a division by zero."""
    if operator == "/":
        return None if right == 0 else left / right
    operations: dict[str, Callable[[float, float], float]] = {
        "+": lambda x, y: x + y,
        "-": lambda x, y: x - y,
        "*": lambda x, y: x * y,
    }
    return operations[operator](left, right)


def draw(rng: random.Random, wording: int | None = None) -> Task:
    """One task with numbers for which every intermediate result is a whole number and not negative."""
    index = rng.randrange(len(WORDINGS)) if wording is None else wording
    chosen = WORDINGS[index]
    numbers = dict(zip("abc", _numbers(rng, chosen.operators), strict=True))
    result: float = 0
    for step in chosen.steps:
        left = result if step.left == RESULT else numbers[step.left]
        value = apply(step.operator, left, numbers[step.right])
        assert value is not None, "operands are drawn from 2 upwards"  # noqa: S101
        result = value
    question = chosen.text.format(name=rng.choice(NAMES), things=rng.choice(THINGS), **numbers)
    return Task(question, show(result), index, numbers)


def _numbers(rng: random.Random, operators: str) -> tuple[int, int, int]:
    def upto(high: int) -> int:
        return rng.randint(2, high)

    if operators == "/":
        divisor = upto(12)
        return divisor * upto(19), divisor, 2
    if operators == "*":
        return upto(99), upto(19), 2
    while True:
        small = operators.startswith("*")
        a, b, c = upto(19 if small else 99), upto(19 if small else 99), upto(9 if operators == "+/" else 99)
        whole = {"-": a > b, "*-": a * b > c, "+-": a + b > c, "+/": (a + b) % c == 0 and a + b > c}
        if whole.get(operators, True):
            return a, b, c


def stream(rng: random.Random, excluded: Collection[str] = ()) -> Iterator[Task]:
    """Tasks without end: every wording once, in random order, then again. None whose question is `excluded`."""
    while True:
        order = list(range(len(WORDINGS)))
        rng.shuffle(order)
        for index in order:
            task = draw(rng, index)
            while task.question in excluded:
                task = draw(rng, index)
            yield task


def held_out(seed: int, n: int) -> list[Task]:
    """`n` distinct questions, wordings in equal shares, on which nothing of this seed is trained."""
    chosen: dict[str, Task] = {}
    for task in stream(random.Random(f"held-out {seed}")):
        if len(chosen) == n:
            break
        chosen.setdefault(task.question, task)
    return list(chosen.values())


Habits = dict[tuple[int, int], dict[str, float]]
"""(wording, step) -> probability of each operator."""


def sloppy_habits(
    rng: random.Random, *, reliable_share: float, reliable: float, unreliable: float
) -> tuple[Habits, frozenset[int]]:
    """How the demonstrator chooses operators, and the wordings that it mostly gets right.

    In a `reliable_share` of the wordings the whole answer is right with probability `reliable`; in each of the others
    one step takes the right operator only with probability `unreliable`, and one particular wrong one mostly.
    """
    habits: Habits = {}
    good = frozenset(rng.sample(range(len(WORDINGS)), round(reliable_share * len(WORDINGS))))
    for index, wording in enumerate(WORDINGS):
        weak_step = None if index in good else rng.randrange(len(wording.steps))
        per_step = reliable ** (1 / len(wording.steps))
        for position, step in enumerate(wording.steps):
            wrong = [operator for operator in OPERATORS if operator != step.operator]
            rng.shuffle(wrong)
            right = unreliable if position == weak_step else per_step
            shares = (0.6, 0.25, 0.15) if position == weak_step else (1 / 3, 1 / 3, 1 / 3)
            mistakes = {operator: (1 - right) * share for operator, share in zip(wrong, shares, strict=True)}
            habits[index, position] = {step.operator: right, **mistakes}
    return habits, good


@dataclass(frozen=True)
class Demonstration:
    """One sloppy solution: the question, (expression, result) of each calculator call, and the final answer."""

    question: str
    calls: tuple[tuple[str, str], ...]
    answer: str


def demonstrate(rng: random.Random, habits: Habits, excluded: Collection[str] = ()) -> Demonstration:
    """A solution of a random task by the sloppy demonstrator; never of an `excluded` question."""
    while True:
        task = draw(rng)
        if task.question in excluded:
            continue
        calls = []
        shown, value = "", 0.0
        for position, step in enumerate(WORDINGS[task.wording].steps):
            chances = habits[task.wording, position]
            operator = rng.choices(list(chances), list(chances.values()))[0]
            left_text = shown if step.left == RESULT else str(task.numbers[step.left])
            left = float(shown) if step.left == RESULT else task.numbers[step.left]
            result = apply(operator, left, task.numbers[step.right])
            if result is None:
                break
            value, shown = result, show(result)
            calls.append((f"{left_text}{operator}{task.numbers[step.right]}", shown))
        else:
            return Demonstration(task.question, tuple(calls), show(value))
