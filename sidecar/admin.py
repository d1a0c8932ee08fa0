"""The operators' port: policies and their weights, health, metrics. Not for agents; bound to loopback by default."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Protocol

import aiohttp
import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sidecar import swap
from sidecar.admin_prompts import PromptAdmin
from sidecar.engine import EngineError
from sidecar.exposition import CONTENT_TYPE, Family, render
from sidecar.metrics import Metrics
from sidecar.openai_error import JSON
from sidecar.policy import Policy
from sidecar.prompt_store import PromptStore
from sidecar.publications import RecordError
from sidecar.publish import ConflictError, Publisher
from sidecar.routes import Routes
from sidecar.tenants import Key, owner_of, presented_key
from tracegrad.errors import InputError, TracegradError

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPEN_PATHS = ("/healthz", "/readyz")
"""Asked without a key, by whatever starts and watches processes."""


class Sidecar(Protocol):
    """What runs behind this port, in one process or several."""

    @property
    def problems(self) -> list[str]:
        """What is wrong with processes."""

    async def families(self) -> list[Family]:
        """What all of them count."""

    async def reload(self) -> list[str]:
        """Take up the configuration as it is now. Raises TracegradError."""


class Publication(BaseModel):
    """The body of a publication. `weights`: a .safetensors file, or a directory with model.safetensors."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: Annotated[int, Field(ge=1, lt=2**63)]
    weights: str
    sha256: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]


class Admin:
    """Handles every request of the operators' port."""

    def __init__(
        self,
        routes: Routes,
        session: aiohttp.ClientSession,
        publisher: Publisher,
        metrics: Metrics,
        *,
        prompts: PromptStore,
    ) -> None:
        self.operation: Sidecar | None = None
        """Set before it serves."""
        self.keys: Sequence[Key] = ()
        """Of these, a request must have one; empty: none need."""
        self._prompts = PromptAdmin(prompts)
        self._policies = routes.policies
        self._entries = routes.continued
        self._session = session
        self._publisher = publisher
        self._metrics = metrics

    def use(self, routes: Routes) -> None:
        """Serve the policies of another routing table."""
        self._policies = routes.policies
        self._entries = routes.continued

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=1 << 20, middlewares=[self._require_key])
        app.router.add_get("/policies", self.policies)
        app.router.add_post("/policies/{name}/publish", self.publish)
        app.router.add_post("/policies/{name}/forget", self.forget)
        app.router.add_post("/policies/{name}/pause", self.pause)
        app.router.add_post("/policies/{name}/resume", self.resume)
        self._prompts.register(app)
        app.router.add_post("/reload", self.reload)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        app.router.add_get("/metrics", self.metrics)
        return app

    async def policies(self, _: web.Request) -> web.Response:
        """Every policy with the version each replica runs."""
        return _json(200, {"policies": [self._describe(policy) for policy in self._policies.values()]})

    async def publish(self, request: web.Request) -> web.Response:
        """Load weights into every replica of a policy: 200 with what each then runs."""
        policy = self._policy(request)
        try:
            wanted = Publication.model_validate_json(await request.read())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "body"
            return _json(400, {"error": f"bad publication: {where}: {first['msg']}"})
        outcome, status, problem, stall_s = "ok", 200, "", 0.0
        try:
            stall_s = await self._publisher.publish(policy, wanted.version, wanted.weights, wanted.sha256)
        except InputError as error:
            outcome, status, problem = "refused", 400, str(error)
        except ConflictError as error:
            outcome, status, problem = "refused", 409, str(error)
        except EngineError as error:
            outcome, status, problem = "failed", 502, str(error)
        except RecordError as error:
            outcome, status, problem = "failed", 503, str(error)
        self._metrics.publishes[policy.name, outcome] += 1
        if problem:
            log.error("publication %s policy=%s version=%d problem=%s", outcome, policy.name, wanted.version, problem)
            return _json(status, {"error": problem, **self._describe(policy)})
        return _json(200, {**self._describe(policy), "stall_s": round(stall_s, 6)})

    async def forget(self, request: web.Request) -> web.Response:
        """Drop what was published of a policy: engines keep the weights they are started with until the next one."""
        policy = self._policy(request)
        try:
            await self._publisher.forget(policy)
        except ConflictError as error:
            return _json(409, {"error": str(error), **self._describe(policy)})
        except RecordError as error:
            return _json(503, {"error": str(error), **self._describe(policy)})
        return _json(200, self._describe(policy))

    async def pause(self, request: web.Request) -> web.Response:
        """Freeze a policy: calls in flight wait in the engine, new ones here, until `resume`."""
        policy = self._policy(request)
        try:
            await swap.pause(self._session, policy)
        except EngineError as error:
            return _json(502, {"error": str(error), **self._describe(policy)})
        return _json(200, self._describe(policy))

    async def resume(self, request: web.Request) -> web.Response:
        """End a pause."""
        policy = self._policy(request)
        try:
            await swap.resume(self._session, policy)
        except EngineError as error:
            return _json(502, {"error": str(error), **self._describe(policy)})
        return _json(200, self._describe(policy))

    async def healthz(self, _: web.Request) -> web.Response:
        """200 while the process lives."""
        return _json(200, {"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        """200 when every replica serves, with weights it can name; else 503 with what is missing.

        `problems` also names, with 200, a replica that serves only as a last resort, since it runs another version.
        """
        replicas = [replica for policy in self._policies.values() for replica in policy.replicas]
        problems = [replica.problem or "no version" for replica in replicas if replica.problem or not replica.healthy]
        waiting = any(not one.healthy or not one.traits.as_pinned or (one.behind and not one.aside) for one in replicas)
        processes = self._sidecar.problems
        waiting, problems = waiting or bool(processes), [*problems, *processes]
        status: dict[str, Any] = {"status": "waiting" if waiting else "ready"}
        if problems and self._knows(request):
            status["problems"] = problems
        return _json(503 if waiting else 200, status)

    async def metrics(self, _: web.Request) -> web.Response:
        """Prometheus' text format."""
        page = render(await self._sidecar.families())
        return web.Response(body=page.encode(), headers={"content-type": CONTENT_TYPE})

    async def reload(self, _: web.Request) -> web.Response:
        """Take up the configuration as it is now: 200 with what needs a restart; 400 where it is refused."""
        try:
            return _json(200, {"status": "reloaded", "restart_for": await self._sidecar.reload()})
        except TracegradError as error:
            log.error("configuration not reloaded, the old one stays: %s", error)  # noqa: TRY400 - one line says it all
            return _json(400, {"error": str(error)})

    @property
    def _sidecar(self) -> "Sidecar":
        assert self.operation is not None  # noqa: S101 - set before the port opens
        return self.operation

    @web.middleware
    async def _require_key(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.keys and request.path not in OPEN_PATHS and not self._knows(request):
            answer = _json(401, {"error": "send the admin port's key: Authorization: Bearer KEY ([sidecar] admin_key)"})
            answer.headers["www-authenticate"] = "Bearer"
            return answer
        return await handler(request)

    def _knows(self, request: web.Request) -> bool:
        return not self.keys or owner_of(self.keys, presented_key(request.headers)) is not None

    def _describe(self, policy: Policy) -> dict[str, Any]:
        """A policy for people and programs.

        `version`: what all replicas in service run, null while they differ or it is not known; `published`: what they
        should run, null while they may run anything; `rolled_back_from`: the newer version that was published before,
        if there is one. `healthy`: in service. `standing`: what becomes of calls (`sidecar.standing`).
        """
        publications = self._publisher.publications
        published = publications.current(policy.name)
        continuation = self._entries[policy.name].continuation
        return {
            "name": policy.name,
            "version": policy.version,
            "published": published.version if published else None,
            "rolled_back_from": publications.rolled_back_from(policy.name),
            "model": policy.model,
            "continuation": continuation.describe() if continuation else None,
            "replicas": [
                {
                    "url": one.url,
                    "version": one.version,
                    "healthy": one.in_service,
                    "standing": one.standing.value,
                    "paused": one.paused,
                    "problem": one.problem,
                }
                for one in policy.replicas
            ],
        }

    def _policy(self, request: web.Request) -> Policy:
        name = request.match_info["name"]
        if name not in self._policies:
            message = f"no policy {name!r}; known: {', '.join(self._policies) or 'none'}"
            raise web.HTTPNotFound(body=orjson.dumps({"error": message}), content_type="application/json")
        return self._policies[name]


def _json(status: int, value: Any) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), headers=JSON)
