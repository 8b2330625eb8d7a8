"""slime's router as an engine: which weights are the newest."""

from __future__ import annotations

import asyncio
from array import array

from agentcore_rl_toolkit.backends.slime.router import RouterEngine
from agentcore_rl_toolkit.engine.base import IDS, SampleRequest, Sampling
from support.slime.router import FakeRouter
from support.tokenizers import make_tokenizer


def test_the_newest_weights_are_those_of_any_request() -> None:
    async def ask(engine: RouterEngine) -> list[int]:
        seen = []
        await engine.start()
        for version in ("default", "3", "5", "4"):
            router.weight_version = version
            request = SampleRequest(array(IDS, [5, 6]), Sampling(max_tokens=2))
            assert [part async for part in engine.sample(request)][-1].weight_version == version
            seen.append(engine.version)
        await engine.close()
        return seen

    with FakeRouter(make_tokenizer(), lambda text: "four").serving() as router:
        assert asyncio.run(ask(RouterEngine(router.url, model="m"))) == [0, 3, 5, 5]
