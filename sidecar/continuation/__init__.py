"""Exact continuation: a call that goes on where an earlier one of its rollout ended is prompted with its tokens.

Invariant: the prompt is the earlier call's prompt ids, its response ids, and what the template writes after them, as
the engine itself rendered it. History is never tokenised again. What cannot be proved goes the ordinary road, with a
reason. The engine answers a chat completion in either case: only its prompt is given as ids instead of as messages.
"""
