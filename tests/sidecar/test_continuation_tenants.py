"""Tenants that use the same rollout id share neither tokens nor records."""

from typing import Any

import pytest
from talk import MOON, MORE, SEA, USER
from template_engine import TemplateEngine

from tracegrad import names

TENANTS = [{"name": name, "key": f"key-of-{name}"} for name in ("red", "blue")]
SYSTEM = {"role": "system", "content": "Be brief, and mind what was said before. " * 10}


@pytest.mark.parametrize("tenant", ["red", "blue"])
async def test_a_call_is_continued_for_the_tenant_whose_it_was(harness_for: Any, served: Any, tenant: str) -> None:
    _, engine = await served()
    assert isinstance(engine, TemplateEngine)
    harness = await harness_for({"name": "policy", "upstream": engine.url, "policy": "policy"}, tenant=TENANTS)
    at, messages = "/rollout/r1/v1", [SYSTEM, USER]
    engine.says += [SEA, MOON]
    answer = await (await harness.chat({"messages": messages}, at=at, authorization="Bearer key-of-red")).json()
    await harness.receiver.one()
    messages += [answer["choices"][0]["message"], MORE]
    assert (await harness.chat({"messages": messages}, at=at, authorization=f"Bearer key-of-{tenant}")).status == 200
    _, span = await harness.receiver.wait(2)
    assert span.attributes[names.TENANT] == tenant
    assert (span.attributes[names.CONTINUATION] == "tokens") == (tenant == "red")
    assert (names.EXTENDS_SPAN_ID in span.attributes) == (tenant == "red")
