"""The demo's tasks are right, its splits disjoint, its planted habits as declared, its template append-only."""

import random
from pathlib import Path

import pytest

from tracegrad.demo import tasks, tiny_model
from tracegrad.demo.plan import Plan


def test_every_answer_is_what_its_steps_compute() -> None:
    rng = random.Random(1)
    for index, wording in enumerate(tasks.WORDINGS):
        for _ in range(200):
            task = tasks.draw(rng, index)
            value = 0.0
            for step in wording.steps:
                left = value if step.left == tasks.RESULT else task.numbers[step.left]
                right = task.numbers[step.right]
                value = {"+": left + right, "-": left - right, "*": left * right, "/": left / right}[step.operator]
                assert value >= 0
                assert value == int(value)
            assert task.answer == str(int(value))
            assert all(str(task.numbers[name]) in task.question for name in "abc" if f"{{{name}}}" in wording.text)


def test_held_out_questions_are_distinct_and_never_trained() -> None:
    held_out = {task.question for task in tasks.held_out(3, 120)}
    assert len(held_out) == 120
    assert held_out == {task.question for task in tasks.held_out(3, 120)}, "a seed always asks the same"
    source = tasks.stream(random.Random(5), held_out)
    assert not held_out & {next(source).question for _ in range(2000)}
    rng = random.Random(6)
    habits, _ = tasks.sloppy_habits(rng, reliable_share=0.4, reliable=0.6, unreliable=0.25)
    shown = [tasks.demonstrate(rng, habits, held_out) for _ in range(2000)]
    assert not held_out & {demonstration.question for demonstration in shown}


def test_a_stream_asks_every_wording_equally_often() -> None:
    source = tasks.stream(random.Random(2))
    drawn = [next(source).wording for _ in range(3 * len(tasks.WORDINGS))]
    assert sorted(drawn) == sorted(3 * list(range(len(tasks.WORDINGS))))


def test_habits_are_distributions_with_the_declared_reliability() -> None:
    habits, good = tasks.sloppy_habits(random.Random(4), reliable_share=0.4, reliable=0.6, unreliable=0.25)
    assert len(good) == round(0.4 * len(tasks.WORDINGS))
    for index, wording in enumerate(tasks.WORDINGS):
        right = 1.0
        for position, step in enumerate(wording.steps):
            assert sum(habits[index, position].values()) == pytest.approx(1)
            right *= habits[index, position][step.operator]
        assert right == pytest.approx(0.6) if index in good else right <= 0.25


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> object:
    return tiny_model.build_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_the_template_is_append_only_in_tokens(tokenizer) -> None:  # type: ignore[no-untyped-def]
    """What the engine was prompted with and sampled is, as ids, the beginning of the next turn's prompt."""
    call = {"id": "x", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "3+14"}'}}
    messages = [
        {"role": "system", "content": "Use the calculator."},
        {"role": "user", "content": "Find the sum of 3 and 14."},
    ]
    answered = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "17", "tool_call_id": "x"},
    ]

    def ids(chosen: list) -> list[int]:  # type: ignore[type-arg]
        return list(tokenizer.apply_chat_template(chosen, add_generation_prompt=True, return_dict=False))

    demonstration = tasks.Demonstration("Find the sum of 3 and 14.", (("3+14", "17"),), "17")
    pieces = [text for text, _ in tiny_model.solution_text(demonstration)]
    encoded = [tokenizer(text, add_special_tokens=False).input_ids for text in pieces]
    assert ids(messages) == encoded[0]
    assert ids(messages + answered) == encoded[0] + encoded[1] + encoded[2]


def test_a_trained_text_decodes_to_itself(tokenizer) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(8)
    habits, _ = tasks.sloppy_habits(rng, reliable_share=0.5, reliable=0.5, unreliable=0.5)
    for _ in range(50):
        text = "".join(piece for piece, _ in tiny_model.solution_text(tasks.demonstrate(rng, habits)))
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_the_training_job_is_valid(tmp_path: Path) -> None:
    from trainer import config

    plan = Plan(seed=7, root=tmp_path)
    file = tmp_path / "train.toml"
    file.write_text(plan.train_toml("http://127.0.0.1:9"))
    job = config.load(file)
    assert (job.data.max_rollouts, job.engine.seed, job.algorithm.epochs) == (96, 7, 2)
    assert job.publish.weights == plan.run / "weights"
