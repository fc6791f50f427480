"""The backbone's end of an edge, against a scripted worker and a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from kvasir.edge import calls as edge_module
from kvasir.edge.inflight import LAST_NUMBER, Inflight
from kvasir.edge.link import LINGER_S, PIECE_BYTES
from kvasir.edge.signs_of_life import KeepAlive, KeepAliveAction, keepalive_action
from kvasir.edge.tcp_edge import TcpEdge
from kvasir.errors import EdgeError, EdgeTimeout, HandshakeRefused, WorkerFault
from kvasir.experts import ExpertRange, FloatRows
from kvasir.kernels.api import RowFormat
from kvasir.kernels.sums import RowSums
from kvasir.wire.codec import encode, join
from kvasir.wire.frames import (
    Dispatch,
    Fault,
    FaultCode,
    Frame,
    Goaway,
    Hello,
    Pause,
    Ping,
    Pong,
    Refuse,
    RefuseCode,
    ReplyType,
    Result,
    Role,
    SumOrder,
    SumResult,
    Welcome,
)
from kvasir.wire.header import Limits, sums_bytes
from kvasir.wire.split import result_bytes
from tests.unit.virtual_time import Socket, VirtualLoop, run, settle

D_MODEL = 4
MODEL, KERNEL, OTHER = "01" * 32, "02" * 32, "03" * 32
HELLO = Hello(Role.BACKBONE, MODEL, KERNEL, "float")
RANGES = (ExpertRange(0, 0, 8), ExpertRange(1, 4, 8))


def welcome(limits: Limits | None = None, model: str = MODEL, kernel: str = KERNEL) -> Welcome:
    return Welcome(model, kernel, "float", RowFormat.F32, D_MODEL, RANGES, limits or Limits(), "w")


async def opened(loop: VirtualLoop, limits: Limits | None = None, keep_alive: KeepAlive | None = None) -> TcpEdge:
    """An edge whose worker has said welcome."""
    connecting = loop.create_task(TcpEdge.connect("w", 1, HELLO, deadline_s=5, keep_alive=keep_alive))
    await settle()
    loop.sockets[-1].send(welcome(limits))
    return await connecting


def ask(
    loop: VirtualLoop, edge: TcpEdge, n_pairs: int = 1, deadline_s: float = 5, reply: ReplyType = ReplyType.F32
) -> asyncio.Task[FloatRows]:
    rows = np.zeros((n_pairs, 4 * D_MODEL), np.uint8)
    pairs = np.arange(n_pairs, dtype=np.int32)
    return loop.create_task(edge.dispatch(0, rows, RowFormat.F32, pairs, pairs, deadline_s, reply=reply))


def asked(socket: Socket) -> list[Dispatch]:
    return [frame for frame in socket.frames if isinstance(frame, Dispatch)]


def answer(dispatch: Dispatch, value: float = 0) -> Result:
    return Result(dispatch.request, dispatch.layer, np.full((len(dispatch.pair_ids), D_MODEL), value, np.float32))


def test_it_works() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        (socket,) = loop.sockets
        assert socket.frames == [HELLO]
        assert edge.coverage == RANGES
        call = ask(loop, edge, n_pairs=2)
        await settle()
        (dispatch,) = asked(socket)
        assert dispatch.layer == 0
        assert not dispatch.has_more
        socket.send(answer(dispatch, 2.5))
        assert (await call).tolist() == [[2.5] * D_MODEL] * 2
        assert edge.bytes_sent == len(join(encode(HELLO))) + len(join(encode(dispatch)))
        assert edge.bytes_received == len(join(encode(welcome()))) + len(join(encode(answer(dispatch))))
        await edge.close()
        assert edge.closed.result() == "closed by this side"

    run(test)


def test_no_pairs_need_no_frame() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        assert (await ask(loop, edge, n_pairs=0)).shape == (0, D_MODEL)
        assert asked(loop.sockets[0]) == []

    run(test)


def test_answers_come_in_any_order() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        calls = [ask(loop, edge) for _ in range(20)]
        await settle()
        dispatches = asked(loop.sockets[0])
        assert len({dispatch.request for dispatch in dispatches}) == edge.n_inflight == 20
        for dispatch in reversed(dispatches):
            loop.sockets[0].send(answer(dispatch, dispatch.request))
        values = [float((await call)[0, 0]) for call in calls]
        assert values == [dispatch.request for dispatch in dispatches]

    run(test)


# Opening


def test_handshake_has_a_deadline() -> None:
    async def test(loop: VirtualLoop) -> None:
        began = loop.time()
        with pytest.raises(EdgeTimeout, match="no welcome within 5 s"):
            await TcpEdge.connect("w", 1, HELLO, deadline_s=5)
        assert loop.time() - began == pytest.approx(5)
        await settle()
        assert loop.sockets[0].is_closing()

    run(test)


@pytest.mark.parametrize(
    ("first", "error", "message"),
    [
        (Refuse(RefuseCode.MODEL, "theirs and yours"), HandshakeRefused, "MODEL.*theirs and yours"),
        (welcome(model=OTHER), HandshakeRefused, f"{OTHER}, this backbone has {MODEL}"),
        (welcome(kernel=OTHER), HandshakeRefused, f"{OTHER}, this backbone has {KERNEL}"),
        (Fault(0, FaultCode.PROTOCOL, "why"), EdgeError, "PROTOCOL.*why"),
        (Ping(1), EdgeError, "Ping where Welcome is due"),
        (Result(1, 0, np.zeros((1, 1), np.float32)), EdgeError, "Result where Welcome is due"),
    ],
)
def test_anything_but_a_fitting_welcome_ends_the_handshake(first: Frame, error: type[Exception], message: str) -> None:
    async def test(loop: VirtualLoop) -> None:
        connecting = loop.create_task(TcpEdge.connect("w", 1, HELLO, deadline_s=5))
        await settle()
        loop.sockets[0].send(first)
        with pytest.raises(error, match=message):
            await connecting
        await settle()
        assert loop.sockets[0].is_closing()

    run(test)


def test_a_handshake_fails_at_once_when_the_worker_hangs_up_or_talks_nonsense() -> None:
    async def test(loop: VirtualLoop) -> None:
        began = loop.time()
        for act in (Socket.hang_up, lambda socket: socket.send_bytes(b"SSH-2.0-OpenSSH_9.2p1 and what else there is")):
            connecting = loop.create_task(TcpEdge.connect("w", 1, HELLO, deadline_s=5))
            await settle()
            cast("Callable[[Socket], None]", act)(loop.sockets[-1])
            with pytest.raises(EdgeError):
                await connecting
        assert loop.time() == began

    run(test)


def test_an_address_where_nobody_listens_is_named() -> None:
    async def test() -> None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(EdgeError, match=f"127.0.0.1:{port} cannot be reached"):
            await TcpEdge.connect("127.0.0.1", port, HELLO, deadline_s=5)

    asyncio.run(test())


# Deadlines


def test_a_late_answer_is_dropped_and_counted_and_the_edge_stays_good() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop, keep_alive=KeepAlive(1000, 1000))
        call, began = ask(loop, edge, deadline_s=7), loop.time()
        with pytest.raises(EdgeTimeout, match="no result within 7 s"):
            await call
        assert loop.time() - began == pytest.approx(7)
        loop.sockets[0].send(answer(asked(loop.sockets[0])[0]))
        assert (edge.n_late, edge.n_inflight, edge.is_available) == (1, 0, True)
        again = ask(loop, edge)
        await settle()
        loop.sockets[0].send(answer(asked(loop.sockets[0])[1], 3))
        assert (await again)[0, 0] == 3

    run(test)


def test_a_late_fault_is_dropped_too() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop, keep_alive=KeepAlive(1000, 1000))
        with pytest.raises(EdgeTimeout):
            await ask(loop, edge)
        loop.sockets[0].send(Fault(asked(loop.sockets[0])[0].request, FaultCode.INTERNAL, "x"))
        assert (edge.n_late, edge.is_available) == (1, True)

    run(test)


def test_a_cancelled_dispatch_is_dropped_like_a_late_one() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        call = ask(loop, edge)
        await settle()
        call.cancel()
        await settle()
        loop.sockets[0].send(answer(asked(loop.sockets[0])[0]))
        assert call.cancelled()
        assert edge.n_late == 1

    run(test)


def test_an_edge_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_module, "MAX_LATE", 3)

    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop, keep_alive=KeepAlive(1000, 1000))
        for _ in range(4):
            with pytest.raises(EdgeTimeout):
                await ask(loop, edge)
        assert "more than 3 answers" in edge.closed.result()

    run(test)


# Ends


def test_a_closed_edge_fails_everything_at_once() -> None:
    async def test(loop: VirtualLoop) -> None:
        cost = 4 * D_MODEL + result_bytes(1, D_MODEL)
        edge = await opened(loop, Limits(max_inflight_bytes=2 * cost))
        calls, began = [ask(loop, edge) for _ in range(5)], loop.time()
        await settle()
        assert len(asked(loop.sockets[0])) == 2  # the others wait for their turn
        loop.sockets[0].hang_up()
        for call in calls:
            with pytest.raises(EdgeError, match="the other side closed the edge"):
                await call
        assert not edge.is_available
        with pytest.raises(EdgeError, match="the other side closed the edge"):
            await ask(loop, edge)
        assert loop.time() == began
        assert "the other side closed the edge" in await edge.closed

    run(test)


def test_close_does_not_wait_for_a_worker_that_reads_nothing() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        loop.sockets[0].is_stuck = True
        calls = [ask(loop, edge) for _ in range(2)]
        await settle()
        began = loop.time()
        await edge.close()
        assert loop.time() - began == pytest.approx(LINGER_S)
        assert loop.sockets[0].was_aborted
        for call in calls:
            with pytest.raises(EdgeError, match="closed by this side"):
                await call

    run(test)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: Result(d.request + 1, 0, np.zeros((2, D_MODEL), np.float32)), "request 2, which is not in flight"),
        (lambda d: Result(d.request, 1, np.zeros((2, D_MODEL), np.float32)), r"\(1, 2, 4\), asked was \(0, 2, 4\)"),
        (lambda d: Result(d.request, 0, np.zeros((3, D_MODEL), np.float32)), r"\(0, 3, 4\)"),
        (lambda d: Result(d.request, 0, np.zeros((2, D_MODEL + 1), np.float32)), r"\(0, 2, 5\)"),
        (lambda d: Result(d.request, 0, np.zeros((2, D_MODEL), np.float16)), "is f16, asked was f32"),
        (lambda _: Fault(9, FaultCode.BAD_IDS, ""), "request 9, which is not in flight"),
        (lambda _: Fault(0, FaultCode.PROTOCOL, "because"), "PROTOCOL.*because"),
        (lambda d: d, "sent Dispatch"),
        (lambda _: HELLO, "sent Hello"),
        (lambda _: welcome(), "sent Welcome"),
        (lambda _: Refuse(RefuseCode.FULL, ""), "sent Refuse"),
    ],
)
def test_a_worker_that_breaks_the_rules_is_left(spoil: Callable[[Dispatch], Frame], message: str) -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        call = ask(loop, edge, n_pairs=2)
        await settle()
        loop.sockets[0].send(spoil(asked(loop.sockets[0])[0]))
        with pytest.raises(EdgeError, match=message):
            await call
        await settle()
        assert loop.sockets[0].is_closing()

    run(test)


def test_an_answer_twice_is_one_too_many() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        call = ask(loop, edge)
        await settle()
        (dispatch,) = asked(loop.sockets[0])
        loop.sockets[0].send(answer(dispatch), answer(dispatch))
        await call
        assert "not in flight" in edge.closed.result()

    run(test)


def test_bytes_that_are_no_frame_end_the_edge() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        call = ask(loop, edge)
        await settle()
        spoilt = bytearray(join(encode(answer(asked(loop.sockets[0])[0]))))
        spoilt[-1] ^= 1
        loop.sockets[0].send_bytes(bytes(spoilt))
        with pytest.raises(EdgeError, match=r"not a frame.*checksum"):
            await call

    run(test)


# What a worker may say


def test_a_fault_fails_its_own_dispatch_only() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        bad, good = ask(loop, edge), ask(loop, edge)
        await settle()
        first, second = asked(loop.sockets[0])
        loop.sockets[0].send(Fault(first.request, FaultCode.BAD_IDS, "local id 9"), answer(second))
        with pytest.raises(WorkerFault, match=r"BAD_IDS.*local id 9"):
            await bad
        await good
        assert edge.is_available

    run(test)


def test_pause_holds_for_its_time_or_until_it_is_ended() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop, keep_alive=KeepAlive(1000, 1000))
        loop.sockets[0].send(Pause(2000))
        with pytest.raises(EdgeError, match="pause"):
            await ask(loop, edge)
        await asyncio.sleep(2)
        assert edge.is_available
        loop.sockets[0].send(Pause(60_000), Pause(0))
        assert edge.is_available

    run(test)


def test_after_goaway_only_what_is_in_flight_is_answered() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        assert edge.state.name == "OPEN"
        call = ask(loop, edge)
        await settle()
        loop.sockets[0].send(Goaway("update"))
        assert (edge.state.name, edge.is_available) == ("GOING_AWAY", False)
        with pytest.raises(EdgeError, match="update"):
            await ask(loop, edge)
        loop.sockets[0].send(answer(asked(loop.sockets[0])[0]))
        await call
        loop.sockets[0].hang_up()
        assert "update" in await edge.closed
        assert edge.state.name == "CLOSED"

    run(test)


def test_f16_answers_come_out_as_f32() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        for sent in (np.full((1, D_MODEL), 0.5, np.float16), np.full((1, D_MODEL), 0.5, np.float32)):
            call = ask(loop, edge, reply=ReplyType.F16)
            await settle()
            dispatch = asked(loop.sockets[0])[-1]
            assert dispatch.reply is ReplyType.F16
            loop.sockets[0].send(Result(dispatch.request, 0, sent))
            outputs = await call
            assert outputs.dtype == np.float32
            assert outputs.tolist() == [[0.5] * D_MODEL]

    run(test)


def test_another_row_format_than_the_workers_is_an_error_here() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        pairs = np.zeros(1, np.int32)
        with pytest.raises(EdgeError, match="takes F32 rows, not KX1"):
            await edge.dispatch(0, np.zeros((1, 261), np.uint8), RowFormat.KX1, pairs, pairs, 5)

    run(test)


# Bytes under way, and splitting


def test_bytes_under_way_are_bounded_and_served_in_order() -> None:
    async def test(loop: VirtualLoop) -> None:
        cost = 4 * D_MODEL + result_bytes(1, D_MODEL)
        edge = await opened(loop, Limits(max_inflight_bytes=2 * cost))
        calls = [ask(loop, edge) for _ in range(4)]
        await settle()
        calls[2].cancel()
        await settle()
        assert len(asked(loop.sockets[0])) == 2
        loop.sockets[0].send(answer(asked(loop.sockets[0])[0], 7))
        await settle()
        assert len(asked(loop.sockets[0])) == 3
        loop.sockets[0].send(*(answer(dispatch, 8 + i) for i, dispatch in enumerate(asked(loop.sockets[0])[1:])))
        assert [float((await call)[0, 0]) for call in (calls[0], calls[1], calls[3])] == [7, 8, 9]
        assert edge.n_inflight == 0

    run(test)


def test_a_dispatch_waits_for_room_no_longer_than_its_deadline() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop, Limits(max_inflight_bytes=1), KeepAlive(1000, 1000))
        first, second = ask(loop, edge, deadline_s=9), ask(loop, edge, deadline_s=4)
        with pytest.raises(EdgeTimeout, match="within 4 s"):
            await second
        assert len(asked(loop.sockets[0])) == 1  # one always fits
        loop.sockets[0].send(answer(asked(loop.sockets[0])[0]))
        await first

    run(test)


def test_a_large_dispatch_is_split_and_put_together_again() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop, Limits(max_rows=2))
        pair_rows = np.array([4, 0, 2, 4, 1, 3], np.int32)
        rows = np.arange(5 * 4 * D_MODEL, dtype=np.uint8).reshape(5, -1)
        ids = np.arange(6, dtype=np.int32)
        call = loop.create_task(edge.dispatch(0, rows, RowFormat.F32, pair_rows, ids, 5))
        await settle()
        dispatches = asked(loop.sockets[0])
        assert [dispatch.has_more for dispatch in dispatches] == [True, True, False]
        for dispatch in reversed(dispatches):
            firsts = dispatch.rows[dispatch.pair_rows, :1].astype(np.float32)
            outputs = np.hstack([firsts, dispatch.pair_ids[:, None], np.zeros((len(firsts), 2))]).astype(np.float32)
            loop.sockets[0].send(Result(dispatch.request, 0, outputs))
        outputs = await call
        assert outputs[:, 0].tolist() == rows[pair_rows, 0].tolist()
        assert outputs[:, 1].tolist() == ids.tolist()

    run(test)


def test_more_is_only_announced_when_it_follows_at_once() -> None:
    async def test(loop: VirtualLoop) -> None:
        cost = 4 * D_MODEL + result_bytes(1, D_MODEL)
        edge = await opened(loop, Limits(max_rows=1, max_inflight_bytes=2 * cost))
        call = ask(loop, edge, n_pairs=3)
        await settle()
        first, second = asked(loop.sockets[0])
        assert (first.has_more, second.has_more) == (True, False)
        loop.sockets[0].send(answer(first), answer(second))
        await settle()
        third = asked(loop.sockets[0])[2]
        assert not third.has_more
        loop.sockets[0].send(answer(third))
        await call

    run(test)


def test_one_bad_part_fails_the_whole_dispatch() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop, Limits(max_rows=1))
        call = ask(loop, edge, n_pairs=3)
        await settle()
        first, second, third = asked(loop.sockets[0])
        loop.sockets[0].send(
            answer(third), Fault(second.request, FaultCode.INTERNAL, "a"), Fault(first.request, FaultCode.INTERNAL, "b")
        )
        with pytest.raises(WorkerFault):
            await call
        assert edge.n_inflight == 0
        assert edge.is_available

    run(test)


def test_a_stuck_worker_costs_no_more_than_a_piece_in_the_transport() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        socket = loop.sockets[0]
        socket.is_stuck = True
        n_rows = 8000
        rows = np.zeros((n_rows, 4 * D_MODEL), np.uint8)
        pairs = np.arange(n_rows, dtype=np.int32)
        calls = [loop.create_task(edge.dispatch(0, rows, RowFormat.F32, pairs, pairs, 5)) for _ in range(5)]
        await settle()
        assert socket.n_unread <= PIECE_BYTES
        while len(asked(socket)) < 5:
            socket.drain()
        for dispatch in asked(socket):
            socket.send(answer(dispatch))
        await asyncio.gather(*calls)

    run(test)


# Sums

WIDE = 256


async def opened_wide(loop: VirtualLoop, limits: Limits | None = None) -> TcpEdge:
    """An edge whose worker takes rows that are wide enough for sums."""
    connecting = loop.create_task(TcpEdge.connect("w", 1, HELLO, deadline_s=5))
    await settle()
    loop.sockets[-1].send(Welcome(MODEL, KERNEL, "kx1", RowFormat.KX1, WIDE, RANGES, limits or Limits(), "w"))
    return await connecting


def ask_sums(loop: VirtualLoop, edge: TcpEdge, named: list[int], n_rows: int) -> asyncio.Task[RowSums]:
    """Ask for sums; pair i is of row `named[i]` and has weight i, row i has exponent i."""
    rows = np.repeat(np.arange(n_rows, dtype=np.uint8)[:, None], 261, axis=1)
    pair_rows, ids = np.array(named, np.int32), np.arange(len(named), dtype=np.int32)
    order = SumOrder(np.arange(len(named), dtype=np.float32), np.arange(n_rows, dtype=np.int32))
    return loop.create_task(edge.dispatch_sums(0, rows, RowFormat.KX1, pair_rows, ids, order, 5))


def sums_of(dispatch: Dispatch) -> SumResult:
    """An answer that shows what was asked: of each row its exponent, its own number and the sum of its weights."""
    assert dispatch.sums is not None
    sums = np.zeros((len(dispatch.rows), WIDE), np.int32)
    sums[:, 0], sums[:, 1] = dispatch.sums.exponents, dispatch.rows[:, 0]
    np.add.at(sums[:, 2], dispatch.pair_rows, dispatch.sums.weights.astype(np.int32))
    return SumResult(dispatch.request, dispatch.layer, len(dispatch.pair_ids), sums)


def test_sums_come_back_as_a_row_for_each_row() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened_wide(loop)
        call = ask_sums(loop, edge, [1, 0, 1, 1], 3)
        await settle()
        (dispatch,) = asked(loop.sockets[0])
        assert dispatch.sums is not None
        assert (dispatch.reply, dispatch.sums.weights.tolist()) == (ReplyType.F32, [0, 1, 2, 3])
        loop.sockets[0].send(sums_of(dispatch))
        sums = await call
        assert (str(sums.dtype), sums.shape) == ("int32", (3, WIDE))
        assert sums[:, :3].tolist() == [[0, 0, 1], [1, 1, 5], [2, 2, 0]]
        assert (await ask_sums(loop, edge, [], 2)).tolist() == [[0] * WIDE] * 2
        assert len(asked(loop.sockets[0])) == 1
        assert edge.n_inflight == 0

    run(test)


def test_sums_of_several_frames_are_put_together_by_row() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened_wide(loop, Limits(max_rows=2))
        named = [4, 0, 2, 4, 1, 6, 0]  # nobody asks for rows 3 and 5
        call = ask_sums(loop, edge, named, 7)
        await settle()
        dispatches = asked(loop.sockets[0])
        assert len(dispatches) == 4
        assert [dispatch.has_more for dispatch in dispatches] == [True, True, True, False]
        for dispatch in reversed(dispatches):
            loop.sockets[0].send(sums_of(dispatch))
        sums = await call
        named_rows = sorted(set(named))
        assert sums[named_rows, :2].tolist() == [[row, row] for row in named_rows]
        assert sums[:, 2].tolist() == [sum(i for i, row in enumerate(named) if row == wanted) for wanted in range(7)]

    run(test)


def test_sums_count_as_under_way_with_the_most_that_they_may_have() -> None:
    async def test(loop: VirtualLoop) -> None:
        cost = 261 + sums_bytes(1, WIDE)
        for budget, n_sent in ((2 * cost, 2), (2 * cost - 1, 1)):
            edge = await opened_wide(loop, Limits(max_inflight_bytes=budget))
            calls = [ask_sums(loop, edge, [0] * 31, 1) for _ in range(3)]
            await settle()
            assert len(asked(loop.sockets[-1])) == n_sent
            for i in range(3):
                loop.sockets[-1].send(sums_of(asked(loop.sockets[-1])[i]))
                await settle()
            await asyncio.gather(*calls)

    run(test)


def wide_answer(dispatch: Dispatch, n_pairs: int = 2, dtype: type[np.floating[Any]] = np.float32) -> Result:
    return Result(dispatch.request, 0, np.zeros((n_pairs, WIDE), dtype))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (wide_answer, "is outputs, asked were sums"),
        (lambda d: wide_answer(d, dtype=np.float16), "is outputs, asked were sums"),
        (lambda d: SumResult(d.request, 1, 2, sums_of(d).sums), r"\(1, 2, 3, 256\), asked was \(0, 2, 3, 256\)"),
        (lambda d: SumResult(d.request, 0, 3, sums_of(d).sums), r"\(0, 3, 3, 256\)"),
        (lambda d: SumResult(d.request, 0, 2, sums_of(d).sums[:2]), r"\(0, 2, 2, 256\)"),
        (lambda d: SumResult(d.request, 0, 2, np.zeros((3, 512), np.int32)), r"\(0, 2, 3, 512\)"),
        (lambda d: SumResult(d.request + 1, 0, 2, sums_of(d).sums), "request 2, which is not in flight"),
    ],
)
def test_a_worker_that_answers_sums_wrongly_is_left(spoil: Callable[[Dispatch], Frame], message: str) -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened_wide(loop)
        call = ask_sums(loop, edge, [0, 2], 3)
        await settle()
        loop.sockets[0].send(spoil(asked(loop.sockets[0])[0]))
        with pytest.raises(EdgeError, match=message):
            await call
        await settle()
        assert loop.sockets[0].is_closing()

    run(test)


@pytest.mark.parametrize("reply", list(ReplyType))
def test_a_worker_that_answers_outputs_with_sums_is_left(reply: ReplyType) -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened_wide(loop)
        pairs = np.arange(2, dtype=np.int32)
        rows = np.zeros((2, 261), np.uint8)
        call = loop.create_task(edge.dispatch(0, rows, RowFormat.KX1, pairs, pairs, 5, reply=reply))
        await settle()
        loop.sockets[0].send(SumResult(asked(loop.sockets[0])[0].request, 0, 2, np.zeros((2, WIDE), np.int32)))
        with pytest.raises(EdgeError, match="is sums, asked were outputs"):
            await call
        assert "is sums, asked were outputs" in edge.closed.result()

    run(test)


def test_late_sums_are_dropped() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened_wide(loop)
        call = ask_sums(loop, edge, [0], 1)
        await settle()
        call.cancel()
        await settle()
        loop.sockets[0].send(sums_of(asked(loop.sockets[0])[0]))
        assert (edge.n_late, edge.is_available) == (1, True)

    run(test)


def test_request_numbers_go_round_and_skip_those_in_flight() -> None:
    async def test(loop: VirtualLoop) -> None:
        inflight, pairs = Inflight(), np.zeros(1, np.int32)
        for number in (1, LAST_NUMBER):
            inflight.add(Dispatch(number, 0, RowFormat.F32, 1, np.zeros((1, 4), np.uint8), pairs, pairs), 1)
        inflight._last = LAST_NUMBER - 1
        assert [inflight.next_number() for _ in range(2)] == [2, 3]

    run(test)


# Signs of life


def test_a_silent_edge_is_pinged_and_given_up() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge, began = await opened(loop), loop.time()
        call = ask(loop, edge, deadline_s=1000)
        with pytest.raises(EdgeError, match="no sign of life"):
            await call
        assert loop.time() - began <= 3 + 5 + 1.5
        assert sum(isinstance(frame, Ping) for frame in loop.sockets[0].frames) == 1
        assert "no sign of life" in edge.closed.result()

    run(test)


def test_pongs_keep_an_edge_and_pings_are_answered() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        socket = loop.sockets[0]
        for _ in range(20):
            await asyncio.sleep(3)
            pings = [frame for frame in socket.frames if isinstance(frame, Ping)]
            if pings:
                socket.send(Pong(pings[-1].number))
        assert edge.is_available
        socket.send(Ping(77))
        assert socket.frames[-1] == Pong(77)

    run(test)


def test_any_byte_is_a_sign_of_life() -> None:
    async def test(loop: VirtualLoop) -> None:
        edge = await opened(loop)
        call = ask(loop, edge, deadline_s=1000)
        await settle()
        for byte in join(encode(answer(asked(loop.sockets[0])[0]))):
            await asyncio.sleep(4)
            loop.sockets[0].send_bytes(bytes([byte]))
        await call

    run(test)


@pytest.mark.parametrize(
    ("now", "last_received", "pinged", "action"),
    [
        (2.9, 0, 0, KeepAliveAction.NOTHING),
        (3.0, 0, 0, KeepAliveAction.PING),
        (7.9, 0, 3, KeepAliveAction.NOTHING),
        (8.0, 0, 3, KeepAliveAction.GIVE_UP),
        (8.0, 4, 3, KeepAliveAction.PING),
        (8.0, 5.1, 3, KeepAliveAction.NOTHING),
    ],
)
def test_keepalive_decides_by_the_clock(
    now: float, last_received: float, pinged: float, action: KeepAliveAction
) -> None:
    assert keepalive_action(now, last_received, pinged, KeepAlive(3, 5)) is action
