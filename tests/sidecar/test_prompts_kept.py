"""The parts of prompt overrides by themselves: drawing, patterns, and what is kept on disk."""

import math
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.matcher import MAX_PATTERN_CHARS, ModelName, Pattern
from sidecar.prompt_definition import Definition, VariantText, filled
from sidecar.prompt_rollouts import RETRY_S, RolloutVariants
from sidecar.prompt_store import LOOK_S, PromptStore, VersionTakenError
from sidecar.prompts import draw
from tracegrad.errors import InputError, SettingsError

ROLLOUTS = [f"rollout-{number}" for number in range(4000)]


def variants(*weights: float) -> list[VariantText]:
    return [VariantText(version=number, weight=weight) for number, weight in enumerate(weights, 1)]


def definition(*texts: str) -> Definition:
    return Definition(variants=[VariantText(version=number, text=text) for number, text in enumerate(texts, 1)])


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (0.2, 0.3, 0.5), (1e9, 1e9), (1e-9, 2e-9)])
def test_variants_are_drawn_by_weight(weights: tuple[float, ...]) -> None:
    counts = Counter(draw("p", rollout, variants(*weights)) for rollout in ROLLOUTS)
    for version, weight in enumerate(weights, 1):
        share = weight / sum(weights)
        error = math.sqrt(share * (1 - share) / len(ROLLOUTS))
        assert abs(counts[version] / len(ROLLOUTS) - share) < 4 * error


def test_a_change_of_weights_moves_only_to_what_gained() -> None:
    before = [draw("p", rollout, variants(1, 1, 1)) for rollout in ROLLOUTS]
    after = [draw("p", rollout, variants(1, 1, 2)) for rollout in ROLLOUTS]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {3}
    assert abs(len(moved) / len(ROLLOUTS) - (1 / 2 - 1 / 3)) < 0.025


def test_prompts_draw_independently_of_each_other() -> None:
    pairs = Counter((draw("p", one, variants(1, 1)), draw("q", one, variants(1, 1))) for one in ROLLOUTS)
    assert min(pairs.values()) > len(ROLLOUTS) / 4 * 0.85


@given(st.text(), st.text())
def test_only_the_place_is_filled(system: str, text: str) -> None:
    assert filled("{system}", system) == system
    assert filled(f"a{{{{system}}}}b{system.replace('{', '')}", "x") == f"a{{system}}b{system.replace('{', '')}"
    assert filled(text.replace("{system}", ""), system) in (text.replace("{system}", ""), filled(text, system))


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*)*x", "a{1,200}a{1,1}b"])
def test_no_text_makes_a_pattern_slow(pattern: str) -> None:
    assert not Pattern(pattern, whole=True).matches("a" * 16_384 + "!")


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(a", "unclosed group"),
        (r"(a)\1", "backreferences"),
        ("(?<!a)b", "look-around"),
        ("a)|(b", "unopened group"),
        ("(?x)a # b", "unclosed group"),
        ("a" * (MAX_PATTERN_CHARS + 1), "at most"),
        ("(a{30}){30}", "repeats too much"),
        ("a{0,251}", "repeats too much"),
    ],
)
def test_bad_patterns_say_what_is_wrong(pattern: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        Pattern(pattern, whole=True)
    assert "\n" not in str(refused.value)


def test_patterns_match_whole_values_or_any_part() -> None:
    assert Pattern("a|bc", whole=True).matches("bc")
    assert not Pattern("a|bc", whole=True).matches("abc")
    assert not Pattern("a", whole=True).matches("a\n")
    assert Pattern("(?m)^b$", whole=False).matches("a\nb\nc")
    assert not Pattern(".*", whole=True).matches("\udcff"), "no Unicode"


@given(st.lists(st.text(max_size=5), min_size=1, max_size=4), st.lists(st.text(max_size=5), min_size=3, max_size=3))
def test_a_star_stands_for_anything(parts: list[str], between: list[str]) -> None:
    parts = [part.replace("*", "+") for part in parts]
    name = "".join(part + filler for part, filler in zip(parts, [*between[: len(parts) - 1], ""], strict=True))
    assert ModelName.of("*".join(parts)).fits(name)
    assert not ModelName.of("x" + "*".join(parts)).fits("y" + name)


def test_what_was_put_is_there_for_the_next_process(tmp_path: Path) -> None:
    PromptStore(tmp_path / "data").put("p", definition("one", "two"))
    again = PromptStore(tmp_path / "data")
    assert [one.name for one in again.current()] == ["p"]
    with pytest.raises(VersionTakenError):
        again.put("p", definition("other"))
    assert again.current()[0].texts == {1: "one", 2: "two"}, "a refused definition changes nothing"
    assert sorted(one.name for one in (tmp_path / "data").iterdir()) == ["prompts.json", "prompts.json.lock"]


def test_a_file_that_breaks_later_changes_nothing_and_at_the_start_it_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PromptStore(tmp_path)
    store.put("p", definition("one"))
    now = [1e9]
    monkeypatch.setattr("sidecar.prompt_store.time.monotonic", lambda: now[0])
    for broken in ("{", '{"prompts": {"p": {"variants": [{"version": 7}]}}}', '{"other": 1}'):
        store.path.write_text(broken)
        now[0] += 2 * LOOK_S
        assert [one.texts for one in store.current()] == [{1: "one"}]
        assert "stay as they were" in caplog.text
        with pytest.raises(SettingsError, match="repair or remove"):
            PromptStore(tmp_path)
        with pytest.raises(SettingsError):
            store.put("q", definition("x")) if "version" not in broken else store.fresh()


def test_a_rollouts_first_version_counts_in_every_process(tmp_path: Path) -> None:
    one, other = RolloutVariants(tmp_path), RolloutVariants(tmp_path)
    assert one.version("p", "r", {1, 2}, lambda: 1) == 1
    assert other.version("p", "r", {1, 2}, lambda: 2) == 1
    assert other.version("q", "r", {1, 2}, lambda: 2) == 2
    assert one.version("p", "r", {1, 2}, lambda: pytest.fail("it is known")) == 1
    one.close()
    other.close()
    assert RolloutVariants(tmp_path).version("p", "r", {1, 2}, lambda: 2) == 1


def test_only_the_newest_rollouts_are_kept(tmp_path: Path) -> None:
    rollouts = RolloutVariants(tmp_path, max_rollouts=300)
    for number in range(1000):
        rollouts.version("p", str(number), {1}, lambda: 1)
    rollouts.close()
    with sqlite3.connect(tmp_path / "prompt_rollouts.sqlite") as connection:
        (count,) = connection.execute("SELECT count(*) FROM rollouts").fetchone()
    assert 300 <= count <= 500


def test_agents_are_served_where_nothing_can_be_written_and_it_is_made_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("sidecar.prompt_rollouts.time.monotonic", lambda: now[0])
    data = tmp_path / "data"
    data.write_text("a file where the directory should be")
    rollouts = RolloutVariants(data)
    assert [rollouts.version("p", one, {1, 2}, lambda: 2) for one in "abca"] == [2] * 4
    assert caplog.text.count("cannot be kept") == 1
    assert rollouts.version("p", "a", {1, 2}, lambda: 1) == 2, "kept in memory meanwhile"
    data.unlink()
    assert rollouts.version("p", "a", {1, 2}, lambda: 1) == 2
    assert not data.exists(), "a failing disk is left alone for a while"
    now[0] += RETRY_S
    assert rollouts.version("p", "a", {1, 2}, lambda: 1) == 2
    assert RolloutVariants(data).version("p", "a", {1, 2}, lambda: 1) == 2, "written after all"


def test_a_broken_file_of_rollouts_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "prompt_rollouts.sqlite").write_bytes(b"no database" * 1000)
    assert RolloutVariants(tmp_path).version("p", "r", {1}, lambda: 1) == 1
