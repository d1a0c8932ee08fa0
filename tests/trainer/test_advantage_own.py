"""Advantage estimators of the user's own, named by import path."""

from collections.abc import Callable
from pathlib import Path

import pytest
from measured_rollouts import flat, returns, rollout

from tracegrad.errors import SettingsError, TracegradError
from trainer.advantage import Options, advantages, estimator_named

Write = Callable[[str], str]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A function that writes a module, and returns the path of `measure` in it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source: str) -> str:
        module = f"own_{abs(hash((str(tmp_path), source)))}"
        (tmp_path / f"{module}.py").write_text(source)
        return f"{module}:measure"

    return write


def test_a_function_of_the_users_own_measures(own: Write) -> None:
    path = own(
        "def measure(rollouts, options):\n"
        "    return [[float(c) * options.gamma for c in rollout.credits] for rollout in rollouts]\n"
    )
    estimator = estimator_named(path)
    assert (estimator.grouped, estimator.batch_wide, estimator.needs_values) == (False, True, False)
    found = advantages([*returns(1), rollout("other", [2.0, 3.0])], estimator, Options(gamma=0.5))
    assert flat(found.per_call) == [0.5, 1.0, 1.5]
    assert found.reasons == ["", ""]
    assert {of_call.shape for of_rollout in found.per_call for of_call in of_rollout} == {()}


def test_its_attributes_say_what_it_asks_of_a_batch(own: Write) -> None:
    path = own(
        "def measure(rollouts, options):\n    return [list(rollout.credits) for rollout in rollouts]\n"
        "measure.grouped = True\n"
    )
    estimator = estimator_named(path)
    assert (estimator.grouped, estimator.batch_wide) == (True, False)
    found = advantages(
        [*returns(1, 2), *returns(7, group="alone"), *returns(4, 4, group="solved")], estimator, Options()
    )
    assert flat(found.per_call) == [1.0, 2.0, 0.0, 0.0, 0.0]
    assert found.reasons == ["", "", "singleton_group", "no_signal", "no_signal"]


def test_returns_that_differ_are_a_signal_for_it(own: Write) -> None:
    path = own("def measure(rollouts, options):\n    return [[rollout.ret] for rollout in rollouts]\n")
    batch = [rollout("task", [0.0], ret=1.0), rollout("task", [0.0], ret=2.0)]
    found = advantages(batch, estimator_named(path), Options())
    assert (flat(found.per_call), found.reasons) == ([1.0, 2.0], ["", ""])


def test_one_that_needs_a_critic_is_not_run_without(own: Write) -> None:
    path = own("def measure(rollouts, options):\n    raise AssertionError\nmeasure.needs_values = True\n")
    with pytest.raises(TracegradError, match="needs a critic's value"):
        advantages(returns(1, 0), estimator_named(path), Options())


@pytest.mark.parametrize(
    ("returned", "wrong"),
    [
        ("None", "NoneType for 2 rollouts; a list with an entry for each is wanted"),
        ("[[0.0]]", "1 entries for 2 rollouts"),
        ("[0.0, 0.0]", "float for 1 calls of a rollout in task; a list"),
        ("[[0.0], [0.0, 0.0]]", "2 entries for 1 calls of a rollout in task"),
        (
            "[[0.0], [[0.0, 0.0, 0.0]]]",
            r"an array of shape \(3,\) for a call of 2 response tokens; shape \(\) or \(2,\)",
        ),
        ("[[0.0], [float('nan')]]", "not finite"),
        ("[[0.0], ['much']]", "str for a call; numbers are wanted"),
        ("[[0.0], [[[0.0], [0.0, 0.0]]]]", "list for a call; numbers are wanted"),
    ],
)
def test_what_it_returns_is_checked(own: Write, returned: str, wrong: str) -> None:
    path = own(f"def measure(rollouts, options):\n    return {returned}\n")
    with pytest.raises(TracegradError, match=wrong) as raised:
        advantages(returns(1, 0), estimator_named(path), Options())
    assert repr(path) in str(raised.value)


def test_what_it_raises_is_one_line_with_its_name_and_place(own: Write) -> None:
    path = own("def measure(rollouts, options):\n    return 1 / 0\n")
    with pytest.raises(TracegradError) as raised:
        advantages(returns(1, 0), estimator_named(path), Options())
    file = path.partition(":")[0] + ".py"
    assert str(raised.value) == (
        f"the advantage estimator {path!r} failed: ZeroDivisionError: division by zero, at {file}:2"
    )


def test_ragged_lists_of_arrays_are_fine(own: Write) -> None:
    path = own(
        "import numpy as np\n"
        "def measure(rollouts, options):\n"
        "    return [[np.full(n, 1.0) for n in rollout.n_tokens] for rollout in rollouts]\n"
    )
    found = advantages([rollout("a", [1.0, 0.0], tokens=[3, 1]), rollout("b", [0.0])], estimator_named(path), Options())
    assert [[len(of_call) for of_call in of_rollout] for of_rollout in found.per_call] == [[3, 1], [2]]


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("grpoo", "no advantage estimator 'grpoo': choose one of grpo, .* or name a function of your own"),
        (
            "no_such_module_here:measure",
            "cannot be imported .* see that the module is in this directory, beside the file",
        ),
        ("math:no_such_function", "'no_such_function' is not there"),
        ("math:pi", "'pi' is not a function"),
        (":measure", "cannot be imported"),
    ],
)
def test_a_name_that_is_none_says_what_is_wrong(path: str, wrong: str) -> None:
    with pytest.raises(SettingsError, match=wrong):
        estimator_named(path)
