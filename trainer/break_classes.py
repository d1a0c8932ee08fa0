"""The breaks of a batch, classified with what the store knows of the calls' messages."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainer.merge_breaks import Break, CallText, classify, decoder_of_model
from trainer.merge_report import MergeReport
from trainer.samples import Sample
from trainer.transitions import Call

MessagesOf = Callable[[Sequence[Call]], Mapping[tuple[str, str], tuple[str, str]]]
"""Calls to their input and output messages as JSON text, by trace and span id."""

AT_ONCE = 100
"""Breaks whose messages are in memory together: those of a long conversation are a megabyte."""

log = logging.getLogger(__name__)


def with_classes(report: MergeReport, samples: Sequence[Sample], messages_of: MessagesOf, model: Path) -> MergeReport:
    """`report` with the classes of its breaks. `samples`: the used ones, which it is about.

    `model`: where its tokenizer is. One break of each class is logged with its reason.
    """
    breaks = report.pairs.breaks
    if not breaks:
        return report
    decode = decoder_of_model(model)
    found: dict[tuple[int, int], Break] = {}
    for begin in range(0, len(breaks), AT_ONCE):
        some = breaks[begin : begin + AT_ONCE]
        messages = messages_of([samples[number].transition.call for pair in some for number in pair])
        for pair in some:
            before, after = (_with_messages(samples[number].transition.call, messages) for number in pair)
            found[pair] = classify(before, after, decode)
    for pair, one in {one.kind: (pair, one) for pair, one in found.items()}.values():
        _log(one, *(samples[number].transition.call for number in pair))
    return report.classified([found[pair].kind for pair in breaks])


def _with_messages(call: Call, messages: Mapping[tuple[str, str], tuple[str, str]]) -> CallText:
    asked, answered = messages.get((call.trace_id, call.span_id), ("", ""))
    return CallText(call.prompt_token_ids, call.response_token_ids, asked, answered)


def _log(one: Break, before: Call, after: Call) -> None:
    log.info(
        "calls do not merge class=%s rollout_id=%s attempt=%d span_id=%s after=%s reason=%r",
        one.kind,
        after.rollout_id,
        after.attempt,
        after.span_id,
        before.span_id,
        one.reason,
    )
