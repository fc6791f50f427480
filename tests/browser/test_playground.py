"""The playground in Chromium over the whole service: a visitor asks, stops, opens a token; keys; what can go wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, Route

from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES
from tests.browser.chromium import DEADLINE_S, Chromium, browse, wait_until
from tests.browser.contributing import HALF_BYTES, contribute
from tests.browser.test_pages_look import check
from tests.swarm.agent_process import AgentProcess
from tests.swarm.service_process import ServiceProcess, service_process

START = "The little dragon"
TRACED = "document.querySelector('.turn:last-child [data-trace=there]')"
CHUNK = {"id": "chatcmpl-" + "0" * 32, "object": "chat.completion.chunk", "created": 1, "model": "m"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """The service, and one worker with half of the experts: answers have two sources, or one on a slow machine."""
    directory = tmp_path_factory.mktemp("playground")
    environment = {"KVASIR_LOCAL_WORKERS": "0", "KVASIR_SLOTS": "4", "KVASIR_THREADS": "1"}
    rates = {"KVASIR_PLAYGROUND_RATE": "100000"}
    with service_process(directory / "service", "--max-tokens=8", **environment, **rates) as service:
        worker = AgentProcess(service.url, WORKER_OVERHEAD_BYTES + HALF_BYTES, directory / "worker")
        try:
            worker.wait_for("settled")
            yield service
        finally:
            worker.close()


async def opened(browser: Chromium, service: ServiceProcess, path: str = "/playground") -> Page:
    """The page, once it knows a model."""
    page = await browser.open(service.url + path)
    await wait_until(page, "document.querySelector('#model option')")
    return page


async def ask(page: Page, text: str, *, max_tokens: int = 8, seed: int = 7) -> None:
    """Write it and press Enter."""
    await page.evaluate("document.querySelector('.sampling').open = true")  # it is shut on a phone
    await page.fill("#max-tokens", str(max_tokens))
    await page.fill("#seed", str(seed))
    await page.fill("#asked", text)
    await wait_until(page, "document.querySelector('#send:not([disabled])')")  # it knows a model, and has seen the text
    await page.press("#asked", "Enter")


async def answering_worker(page: Page) -> str:
    """Begin anew and ask until a worker, which may still be tested, has computed a part of the answer; its name."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if await page.query_selector("#new"):
                await page.click("#new")
            await wait_until(page, "document.querySelectorAll('.turn').length === 0")
            await ask(page, START)
            await wait_until(page, TRACED)
            name = await page.get_attribute(".turn:last-child .sources tbody tr", "data-worker")
            if name:
                return name


async def shown_text(page: Page) -> str:
    """The last answer as it is shown, without what only screen readers hear."""
    spans = "[...document.querySelectorAll('.turn:last-child .answer > span:not(.unseen)')]"
    return str(await page.evaluate(f"{spans}.map(span => span.textContent).join('')"))


async def request_id(page: Page) -> str:
    return str(await page.get_attribute(".turn:last-child", "data-request"))


async def of_api(page: Page, path: str) -> Any:
    """What the API tells the visitor whose key the page has."""
    return await page.evaluate(
        """async (path) => {
             const { key } = JSON.parse(localStorage.getItem("kvasir-guest-key"));
             return (await fetch(path, { headers: { Authorization: `Bearer ${key}` } })).json();
           }""",
        path,
    )


def answer_of_api(service: ServiceProcess, prompt: str, max_tokens: int, seed: int) -> str:
    """The same request, whole, with the service's own key."""
    headers = {"Authorization": f"Bearer {service.key}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=DEADLINE_S) as client:
        model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        asked = {
            "model": model, "prompt": prompt, "max_tokens": max_tokens, "seed": seed, "temperature": 0.7, "top_p": 0.95,
        }  # fmt: skip
        reply = client.post("/v1/completions", json=asked).raise_for_status().json()
    return str(reply["choices"][0]["text"])


def test_a_visitor_asks_and_sees_where_it_was_computed(service: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await opened(browser, service)
        await ask(page, START, max_tokens=24)
        await wait_until(page, TRACED)
        expected = answer_of_api(service, START, 24, 7)
        assert await shown_text(page) == expected.lstrip()
        record, trace = [await of_api(page, f"/v1/requests/{await request_id(page)}{end}") for end in ("", "/trace")]
        shown = await page.evaluate(
            "[...document.querySelectorAll('.whole .legend li')].map(li => [li.dataset.kind, Number(li.dataset.share)])"
        )
        told = {"worker": record["shares"]["workers"], "fallback": record["shares"]["fallback"]}
        assert dict(shown) == pytest.approx({kind: share for kind, share in told.items() if share}, abs=1e-5)
        workers = await page.evaluate(
            "[...document.querySelectorAll('.sources tbody tr')].map(tr => tr.dataset.worker)"
        )
        assert set(workers) == {source["worker"] or "" for source in trace["sources"]}
        assert len(trace["tokens"]) == await page.evaluate("document.querySelectorAll('.token').length")
        assert await check(page, "playground_answer-desktop-light") == []

    browse(scenario, viewport={"width": 1440, "height": 900})


def test_a_token_can_be_opened_by_mouse_and_by_keyboard(service: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await opened(browser, service)
        await ask(page, START, max_tokens=12)
        await wait_until(page, TRACED)
        await page.click(".token >> nth=3")
        await wait_until(page, "document.querySelector('.traced-head h4').textContent.startsWith('Token 4,')")
        assert await page.evaluate("document.querySelectorAll('.token.opened').length") == 1
        await page.focus(".columns input")
        await page.keyboard.press("ArrowRight")
        await wait_until(page, "document.querySelector('.traced-head h4').textContent.startsWith('Token 5,')")
        assert await check(page, "playground_token-phone-dark") == []
        await page.click("text=All tokens")
        await wait_until(page, "document.querySelector('.traced-head h4').textContent === 'The last 12 tokens'")

    browse(scenario, viewport={"width": 390, "height": 844}, color_scheme="dark", reduced_motion="reduce")


async def never_ending(route: Route) -> None:
    """The page's request, without the token that ends a story."""
    body = json.loads(route.request.post_data or "") | {"logit_bias": {"0": -100}}
    await route.continue_(post_data=json.dumps(body))


def test_an_answer_can_be_stopped_and_went_on_with(service: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> None:
        browser.forgive("404")  # the record of what was cancelled comes a moment later
        page = await opened(browser, service)
        await page.route("**/v1/completions", never_ending)
        await ask(page, START, max_tokens=900)
        await wait_until(page, "document.querySelector('.turn').dataset.phase === 'streaming'")
        await page.click("#stop")
        await wait_until(page, "document.querySelector('.turn').dataset.phase === 'stopped'")
        await wait_until(page, TRACED)  # also of what was cancelled
        record = await of_api(page, f"/v1/requests/{await request_id(page)}")
        assert record["error_code"] == "cancelled"
        assert await page.evaluate("document.querySelectorAll('.turn').length") == 1
        await page.unroute("**/v1/completions")
        before = await page.evaluate("document.querySelector('.answer').innerText.length")
        await ask(page, "", max_tokens=5)
        await wait_until(page, "document.querySelectorAll('.turn').length === 2")
        await wait_until(page, TRACED)
        assert before == await page.evaluate("document.querySelector('.answer').innerText.length")
        await page.click("#new")
        await wait_until(page, "document.querySelectorAll('.turn').length === 0")

    browse(scenario, viewport={"width": 1440, "height": 900})


def test_what_this_browser_computed_is_told_apart(service: ServiceProcess) -> None:
    """One of the native workers' names, written down as this browser's own."""

    async def scenario(browser: Chromium) -> None:
        page = await opened(browser, service)
        name = await answering_worker(page)
        await page.evaluate(
            """async (nodeId) => {
                 const { RecordStore } = await import("/static/kvasir/worker/tab/record_store.js");
                 const records = await RecordStore.open();
                 await records.put("worker", { version: 1, identity: { nodeId } });
                 records.database.close();
               }""",
            name,
        )
        assert await answering_worker(page) == name
        row = f".turn:last-child .sources tr[data-worker='{name}']"
        assert await page.get_attribute(row, "data-kind") == "tab"
        assert "This browser" in str(await page.text_content(row))
        assert "This browser computed" in str(await page.text_content(".turn:last-child .this-tab"))

    browse(scenario, viewport={"width": 1440, "height": 900})


def test_a_tab_that_contributes_is_told_apart_in_the_next_answer(service: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> None:
        tab = await contribute(browser, service.url)
        own = await tab.evaluate("contribution.identity.nodeId")
        page = await opened(browser, service)
        async with asyncio.timeout(DEADLINE_S):
            while await answering_worker(page) != own:  # this browser's own comes first
                pass
        share = f"document.querySelector(\".turn:last-child tr[data-worker='{own}'] .number\").textContent"
        assert str(await page.evaluate(share)) in str(await page.text_content(".turn:last-child .this-tab"))
        assert await shown_text(page) == answer_of_api(service, START, 8, 7).lstrip()

    browse(scenario, viewport={"width": 1440, "height": 900})


def test_a_key_of_ones_own_is_used_and_leaves_with_the_tab(service: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await opened(browser, service)
        await page.click(".access summary")
        await page.fill("#own-key", service.key)
        await page.click("text=Use this key")
        await page.wait_for_selector("#as-visitor")
        browser.forgive("404|401")
        await ask(page, START, max_tokens=4)
        await wait_until(page, TRACED)
        hidden = await of_api(page, f"/v1/requests/{await request_id(page)}")
        assert hidden["error"]["code"] == "request_not_found"  # it is not the visitor's
        assert service.key not in str(await page.evaluate("JSON.stringify(localStorage)"))
        other = await opened(browser, service)
        assert await other.evaluate("sessionStorage.getItem('kvasir-own-key')") is None
        await page.click("#as-visitor")
        await page.wait_for_selector("#own-key")
        await page.fill("#own-key", "kvk-wrong")
        await page.click("text=Use this key")
        await page.wait_for_selector("text=This key is not valid here.")

    browse(scenario, viewport={"width": 1440, "height": 900})


def test_where_visitors_get_no_key_the_page_asks_for_one(service: ServiceProcess) -> None:
    async def refuse(route: Route) -> None:
        error = {"error": {"code": "playground_off", "message": "no", "type": "permission_error", "param": None}}
        await route.fulfill(status=403, json=error)

    async def scenario(browser: Chromium) -> None:
        browser.forgive("403")
        await browser.context.route("**/v1/playground/key", refuse)
        page = await browser.open(f"{service.url}/playground")
        await page.wait_for_selector("text=This site gives no keys to visitors.")
        assert await page.is_visible("#own-key")
        await page.fill("#own-key", service.key)
        await page.press("#own-key", "Enter")
        await ask(page, START, max_tokens=3)
        await wait_until(page, TRACED)

    browse(scenario, viewport={"width": 1440, "height": 900})


def test_a_visitors_key_that_counts_no_more_is_replaced(service: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> None:
        browser.forgive("401")
        page = await opened(browser, service)
        stale = {"key": "kvk-0123456789abcdef-" + "A" * 43, "expires": 4_000_000_000}
        await page.evaluate("(kept) => localStorage.setItem('kvasir-guest-key', kept)", json.dumps(stale))
        await ask(page, START, max_tokens=3)
        await wait_until(page, TRACED)

    browse(scenario, viewport={"width": 1440, "height": 900})


def stream(*chunks: dict[str, Any], end: str = "data: [DONE]\n\n") -> str:
    return "".join(f"data: {json.dumps(CHUNK | chunk)}\n\n" for chunk in chunks) + end


def said(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "logprobs": {"content": [{"logprob": -0.5}]}}]}


def test_a_model_with_a_chat_template_is_talked_to(service: ServiceProcess) -> None:
    """The demo model has none, so the API's answers are the test's."""
    asked: list[Any] = []

    async def models(route: Route) -> None:
        facts = {"n_ctx": 512, "architecture": "qwen3moe", "system_fingerprint": "fp", "chat": True}
        await route.fulfill(json={"object": "list", "data": [{"id": "talker", "kvasir": facts}]})

    async def chat(route: Route) -> None:
        asked.append(json.loads(route.request.post_data or ""))
        failure = 'event: error\ndata: {"error": {"code": "backbone_lost", "message": "gone"}}\n\n'
        body = stream(said("Good"), said(" day"), end="data: [DONE]\n\n" if len(asked) == 1 else failure)
        await route.fulfill(body=body, content_type="text/event-stream")

    async def scenario(browser: Chromium) -> None:
        browser.forgive("404")  # there is no trace of an answer that nobody computed
        await browser.context.route("**/v1/models", models)
        await browser.context.route("**/v1/chat/completions", chat)
        page = await opened(browser, service)
        await page.fill("#system", "Be kind.")
        await ask(page, "Hello", max_tokens=9)
        await wait_until(page, "document.querySelector('.turn')?.dataset.phase === 'done'")
        assert await shown_text(page) == "Good day"
        await ask(page, "And you?", max_tokens=9)
        await page.wait_for_selector("text=The answer was interrupted")
        assert [(message["role"], message["content"]) for message in asked[1]["messages"]] == [
            ("system", "Be kind."), ("user", "Hello"), ("assistant", "Good day"), ("user", "And you?"),
        ]  # fmt: skip
        await wait_until(page, "document.querySelector('.turn:last-child [data-trace=missing]')")

    browse(scenario, viewport={"width": 1440, "height": 900})


def test_it_speaks_indonesian(service: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await opened(browser, service)
        assert await page.inner_text("h1") == "Bicara dengan model"
        await ask(page, START, max_tokens=6)
        await wait_until(page, TRACED)
        shown = await page.inner_text("main")
        assert "Di mana ini dihitung" in shown and "6 token terakhir" in shown and "Lapisan 0 sampai 5" in shown
        assert not any(word in shown for word in ("Where", "Worker", "tokens", "Send", "Share"))

    browse(scenario, viewport={"width": 1440, "height": 900}, locale="id-ID")
