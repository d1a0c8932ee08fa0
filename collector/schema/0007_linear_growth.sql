-- A call that extends an earlier one of its rollout is a span that holds only what is new in it; tracegrad/names.py tells
-- what it says of the rest (`tracegrad.extends.*`). The views of 0024 put calls together, and `llm_calls` shows them whole.
-- Calls form lines: chains, each call extending the one before; what extends a call that has been extended already
-- begins a line of its own, a fork. Along a line the shared beginnings grow, so that each of them is a beginning of the
-- line's tokens: a prompt is one slice and what is new. All of it costs as much as its output is long.
-- Two things prove a prompt. By numbers alone, which is cheap: each call above is there once, has what was taken from it,
-- and all of that is as long as the prompt was: else the call is not trainable. By its checksum, where the prompt is
-- read: another one than the engine saw is never shown, the prompt is empty.
ALTER TABLE otel.otel_traces
    ADD COLUMN IF NOT EXISTS ExtendsSpanId String MATERIALIZED SpanAttributes['tracegrad.extends.span_id'] CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS ExtendsRoot String MATERIALIZED SpanAttributes['tracegrad.extends.root'] CODEC(ZSTD(1)),
    -- 0: it extends nothing.
    ADD COLUMN IF NOT EXISTS ExtendsDepth UInt32
        MATERIALIZED toUInt32OrZero(SpanAttributes['tracegrad.extends.depth']) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS ExtendsTokens UInt32
        MATERIALIZED toUInt32OrZero(SpanAttributes['tracegrad.extends.tokens']) CODEC(ZSTD(1)),
    -- 0: the messages are whole.
    ADD COLUMN IF NOT EXISTS ExtendsMessages UInt32
        MATERIALIZED toUInt32OrZero(SpanAttributes['tracegrad.extends.messages']) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS CallLine String MATERIALIZED multiIf(
        SpanAttributes['tracegrad.extends.line'] != '', SpanAttributes['tracegrad.extends.line'],
        SpanAttributes['tracegrad.extends.root'] != '', SpanAttributes['tracegrad.extends.root'],
        SpanId) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS IsFork Bool MATERIALIZED SpanAttributes['tracegrad.extends.line'] = SpanId CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS ForkPath Array(String)
        MATERIALIZED JSONExtract(SpanAttributes['tracegrad.extends.path'], 'Array(String)') CODEC(ZSTD(1)),
    -- Of the whole prompt. 0: it is not known, so nothing put together is proved.
    ADD COLUMN IF NOT EXISTS PromptLength UInt32
        MATERIALIZED toUInt32OrZero(SpanAttributes['tracegrad.prompt.length']) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS PromptCrc32 UInt32
        MATERIALIZED toUInt32OrZero(SpanAttributes['tracegrad.prompt.crc32']) CODEC(ZSTD(1));

-- For the rows that are there already, in the background: until then these columns are read from the map.
ALTER TABLE otel.otel_traces
    MATERIALIZE COLUMN ExtendsSpanId, MATERIALIZE COLUMN ExtendsRoot, MATERIALIZE COLUMN ExtendsDepth,
    MATERIALIZE COLUMN ExtendsTokens, MATERIALIZE COLUMN ExtendsMessages, MATERIALIZE COLUMN CallLine,
    MATERIALIZE COLUMN IsFork, MATERIALIZE COLUMN ForkPath, MATERIALIZE COLUMN PromptLength,
    MATERIALIZE COLUMN PromptCrc32;
