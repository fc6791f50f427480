"""One backbone process: a model, its engine service, and the threads that connect it to Redis.

`backbone.tasks` starts it before the first request and calls `generate` for each request, which returns when the
request's stream has ended. A request is generated at most once and always gets a last event; every wait has a deadline.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from backbone.engine.dispatch.dispatcher import ExpertDispatcher, Served
from backbone.engine.dispatch.hot_cache import HotCache
from backbone.engine.model.expert_caller import ExpertCaller
from backbone.engine.serving.jobs import Broken, Completed, FailureKind, JobEvents, JobFailure
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.service import EngineService, ServiceLimits
from backbone.engine.swarm.reply_format import ReplyFormat
from backbone.engine.swarm.transport import Transport
from backbone.process.cancel_listener import CancelListener
from backbone.process.event_mapping import EventMapper, refusal
from backbone.process.event_writer import EventWriter, OpenStream
from backbone.process.heartbeat import Heartbeat
from backbone.process.market_link import MarketLink
from backbone.process.pulse_keeper import PulseKeeper, PulseSources
from backbone.process.request_intake import Claim, RequestIntake, claim, refuse_redelivery
from backbone.process.served_model import directory_entry, max_drafts, open_model, open_sum_scale
from backbone.process.worker_transport import make_transport
from backbone.service_settings import ServiceSettings
from backbone.stream.events import Failed
from backbone.stream.payloads import GenerationRequest
from kvasir.errors import KvasirError

logger = logging.getLogger(__name__)

_REDIS_TIMEOUT_S = 2.0
_MAX_CONNECTIONS = 1024
_LATE_S = 30.0  # after a request's deadline; if its stream has not ended by then, the task gives up
_NOT_TAKEN_WAIT_S = 10.0
_NOT_TAKEN = Failed(503, "redis_lost", "the message store could not be reached; send the request again")
_NOT_READ = Failed(500, "engine_error", "the backbone could not read this request")


def redis_connection(url: str) -> Redis:
    """Return the process's client. Every command ends within seconds; a stale connection is reopened once."""
    return Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=_REDIS_TIMEOUT_S,
        socket_connect_timeout=_REDIS_TIMEOUT_S,
        socket_keepalive=True,
        health_check_interval=5,
        max_connections=_MAX_CONNECTIONS,
        retry=Retry(NoBackoff(), 1),
    )


class BackboneProcess:
    """Call `start`, then `generate` from many threads, then `stop`."""

    def __init__(self, settings: ServiceSettings, redis_url: str, on_sick: Callable[[], None]) -> None:
        """Open the model and connect to workers. `on_sick` is called if the engine fails: the process must end then."""
        self.id = f"{socket.gethostname()}-{secrets.token_hex(4)}-{os.getpid()}"
        self._settings = settings
        self._stack = ExitStack()
        self._redis = self._stack.enter_context(redis_connection(redis_url))
        self._loaded = self._stack.enter_context(open_model(settings))
        self._sum_scale = open_sum_scale(settings, self._loaded)
        self._transport = self._stack.enter_context(make_transport(settings, self._loaded.hello(), redis_url))
        self._intake = RequestIntake(
            settings.model_name, self._loaded.tokenizer, self._loaded.index.metadata, settings.max_deadline_s
        )
        entry = directory_entry(settings, self._loaded, self._sum_scale, has_chat=self._intake.has_chat)
        self._market = MarketLink(settings, self.id, self._loaded, self._transport, self._redis)
        exposures, records = self._market.guard.exposures, self._market.records
        self._mapper = EventMapper(self.id, entry, self._loaded.tokenizer, exposures)
        self._writer = EventWriter(self._redis, self._lose_store, before_ends=records.end)
        self._hot: HotCache | None = None
        if settings.hot_bytes:
            self._hot = HotCache(self._loaded.store, self._transport, settings.hot_bytes)
            self._stack.callback(self._hot.close)
        self._service = self._make_service(self._loaded, self._transport)
        self._pulse = PulseKeeper(self._redis, self._loaded.card.fingerprint, self.id, self._pulse_sources())
        self._heartbeat = Heartbeat(
            self._redis,
            self.id,
            entry,
            stats=self._stats,
            is_healthy=self._is_healthy,
            on_sick=on_sick,
            also=self._pulse.beat,
        )
        self._listener = CancelListener(self._redis, self._cancel, lambda: self._writer.request_ids)
        self._cancelled: set[str] = set()
        self._is_leaving = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the engine and the threads; the heartbeat comes after the engine."""
        self._market.start()
        self._writer.start()
        self._service.start()
        self._heartbeat.start()
        self._listener.start()
        logger.info("backbone %s serves %s", self.id, self._settings.model_name)

    def drain(self) -> None:
        """Refuse new requests, let running ones finish for `stop_s`, and end the rest with a typed error."""
        self._is_leaving = True
        self._service.stop(self._settings.stop_s)

    def stop(self) -> None:
        """Drain, then stop all threads and close all connections."""
        self.drain()
        self._writer.stop(5.0)
        self._listener.stop()
        self._heartbeat.stop()
        self._pulse.leave()
        self._market.stop()
        self._stack.close()

    def generate(self, text: str) -> None:
        """Serve one request from its JSON; return when its stream has ended. Never raises for an invalid request."""
        try:
            request = GenerationRequest.from_json(text)
        except KvasirError:
            logger.exception("a task holds no request of this version: its reader will time out")
            return
        with self._lock:
            if request.request_id in self._writer.request_ids:
                logger.warning("request %s was delivered again while it runs here: ignored", request.request_id)
                return
            stream = self._writer.open(request.request_id, request.deadline_s)
            self._market.records.open(request)
            self._pulse.latencies.open(request.request_id, request.created)
        try:
            self._serve(request, stream)
        except RedisError as error:
            # The claim may have succeeded. If another backbone writes this stream, Redis refuses this entry.
            logger.error("request %s could not be claimed: %s", request.request_id, error)
            self._writer.put([(request.request_id, _NOT_TAKEN)])
            stream.finished.wait(_NOT_TAKEN_WAIT_S)
        finally:
            self._writer.close(stream)
            self._market.records.close(request.request_id)
            self._pulse.latencies.close(request.request_id)
            self._cancelled.discard(request.request_id)

    def _serve(self, request: GenerationRequest, stream: OpenStream) -> None:
        request_id = request.request_id
        taken = claim(self._redis, request_id, self.id, request.deadline_s)
        if taken is Claim.TAKEN:
            refuse_redelivery(self._redis, request_id, self.id)
            return
        if taken is Claim.CANCELLED:
            self._writer.put([(request_id, Failed(499, "cancelled", "the request was cancelled while it waited"))])
        else:
            self._submit(request)
        if not stream.finished.wait(min(request.deadline_s, self._settings.max_deadline_s) + _LATE_S):
            logger.error("request %s has not ended long after its deadline: cancelled", request_id)
            self._service.cancel(request_id)

    def _submit(self, request: GenerationRequest) -> None:
        try:
            self._service.submit(self._intake.job(request))
        except KvasirError as error:
            self._writer.put([(request.request_id, refusal(error))])
        except Exception:  # any error must reach the reader
            logger.exception("request %s could not be read", request.request_id)
            self._writer.put([(request.request_id, _NOT_READ)])
        if request.request_id in self._cancelled:  # the cancel came while the prompt was read
            self._service.cancel(request.request_id)

    def _cancel(self, request_id: str) -> None:
        if request_id in self._writer.request_ids:
            self._cancelled.add(request_id)
            self._service.cancel(request_id)

    def _lose_store(self, reason: str) -> None:
        logger.error("all requests of this backbone end: %s", reason)
        self._service.cancel_all(JobFailure(FailureKind.STORE_LOST, reason))

    def _pass_on(self, events: JobEvents) -> None:
        """Write the engine's events, on its thread."""
        self._pulse.latencies.note(events)
        for request_id, event in events:
            if isinstance(event, Completed | Broken):
                self._market.records.trace(request_id, event.trace)
        self._writer.put([(request_id, self._mapper.event(request_id, event)) for request_id, event in events])

    def _make_service(self, loaded: LoadedModel, transport: Transport) -> EngineService:
        settings = self._settings

        def make_experts(on_served: Callable[[Served], None]) -> ExpertCaller:
            def count(served: Served) -> None:
                on_served(served)
                self._pulse.work.add(served)

            return ExpertDispatcher(
                loaded.store,
                transport,
                deadline_s=settings.worker_deadline_s,
                reply_format=ReplyFormat(settings.reply),
                on_served=count,
                guard=self._market.guard,
                traffic=self._market.traffic,
                sum_scale=self._sum_scale,
                hot=self._hot,
            )

        limits = ServiceLimits(
            settings.n_groups,
            settings.step_rows,
            settings.max_waiting,
            settings.n_traced_tokens,
            max_drafts(settings, loaded),
        )
        return EngineService(loaded, make_experts, self._pass_on, limits=limits)

    def _pulse_sources(self) -> PulseSources:
        guard, transport = self._market.guard, self._transport
        return PulseSources(
            state=self._service.state,
            transport=transport,
            usable=lambda: guard.usable(transport.live()),
            node_of=self._market.node_of,
            trust=guard.book,
        )

    def _is_healthy(self) -> bool:
        if self._is_leaving:  # the engine may have stopped; the lease must last until the last events are written
            return True
        return (
            self._service.is_alive
            and self._writer.is_alive
            and self._service.state().stalled_s < self._settings.stall_s
        )

    def _stats(self) -> Mapping[str, float]:
        state = self._service.state()
        counters = state.counters
        return {
            "running": state.n_running,
            "waiting": state.n_waiting,
            "slots": state.n_slot,
            "groups": state.n_groups,
            "steps": counters.n_steps,
            "tokens": counters.n_tokens,
            "drafted_tokens": counters.drafts.drafted,
            "accepted_tokens": counters.drafts.accepted,
            "completed": counters.n_completed,
            "failed": counters.n_failed,
            "row_experts_workers": counters.shares.workers,
            "row_experts_hot": counters.shares.hot,
            "row_experts_fallback": counters.shares.fallback,
            "hot_experts": self._hot.n_experts if self._hot else 0,
            "hot_bytes": self._hot.n_bytes if self._hot else 0,
            # may serve; the call also has new workers tested, so that they are ready before the first request
            "workers": len(self._market.guard.usable(self._transport.live())),
        }
