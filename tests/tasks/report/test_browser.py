"""The page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chromium import headless_chromium
from playwright.sync_api import Browser, expect
from playwright.sync_api import Page as BrowserPage
from report_builders import ERROR, FAILED, publish, rewarded
from store_builders import in_memory

from rollmill.tasks.report.build import build_report

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'><!-- \u2028 end"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with headless_chromium() as chromium:
        yield chromium


@dataclass(slots=True)
class Opened:
    """A page in the browser, what it asked for, and what it complained about."""

    page: BrowserPage
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def expect_found(self, text: str) -> None:
        """Wait until the page says that it found this."""
        expect(self.page.locator("#found")).to_contain_text(text, timeout=10_000)


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """Open a page of HTML; at the end, see that it asked for nothing but itself and complained of nothing."""
    contexts, every = [], []

    def show(html: str, **settings: Any) -> Opened:
        path = tmp_path / "report.html"
        path.write_text(html)
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 900}, **settings))
        shown = Opened(contexts[-1].new_page())
        shown.page.on("request", lambda request: shown.requests.append(request.url))
        shown.page.on("console", lambda message: shown.complaints.append(message.text))
        shown.page.on("pageerror", lambda error: shown.complaints.append(str(error)))
        shown.page.goto(path.as_uri())
        every.append((shown, path.as_uri()))
        return shown

    yield show
    for shown, address in every:
        assert shown.requests == [address]
        assert shown.complaints == []
        assert shown.page.evaluate("window.hacked") is None
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def html() -> str:
    """A page of four prompts: with hostile text, failed rewards, an error, and an answer that was cut."""
    texts = ["the cat sat", "the dog ran", HOSTILE]
    groups: list[list[Any]] = [
        [{"response_text": text, "reward": float(place)} for place, text in enumerate(texts)],
        [rewarded(0.25), FAILED, rewarded(1.0)],
        [ERROR] * 3,
        [{**rewarded(0.0), "prompt_text": HOSTILE, "finish_reason": "length"}] * 3,
    ]
    return build_report(publish(in_memory(), groups)).html


def answers_of(opened: Opened) -> list[str]:
    return opened.page.locator("#answers .answer strong").all_inner_texts()


def test_hostile_text_is_shown_and_never_run(opened: Any, html: str) -> None:
    shown = opened(html)
    shown.page.get_by_role("button", name="0/3 pass").filter(has_text="script").click()
    assert HOSTILE.split("\u2028")[0] in shown.page.inner_text("#prompt .text-block")
    shown.page.fill("#search", "onerror")
    shown.expect_found("2 of 4")
    assert shown.page.locator("img").count() == 0
    assert shown.page.locator("script").count() == 3


def test_answers_are_ranked_beside_their_prompt(opened: Any, html: str) -> None:
    shown = opened(html)
    assert answers_of(shown) == ["1. reward 2", "2. reward 1", "3. reward 0"]
    assert "question 0" in shown.page.inner_text("#prompt")
    box = {name: shown.page.locator(name).bounding_box() for name in ("#prompt", "#answers")}
    assert box["#prompt"]["x"] + box["#prompt"]["width"] <= box["#answers"]["x"]


def test_search_finds_words_of_answers(opened: Any, html: str) -> None:
    shown = opened(html)
    shown.page.fill("#search", "DOG ran")
    shown.expect_found("1 of 4 prompts, 1 answers match")
    assert shown.page.locator("#answers .answer:not(.other)").count() == 1


@pytest.mark.parametrize(
    ("status", "found"),
    [("pass", "2 of 4 prompts, 3 answers match"), ("fail", "3 of 4 prompts, 5 answers match"),
     ("failed", "1 of 4 prompts, 1 answers match"), ("skipped", "1 of 4 prompts, 3 answers match"),
     ("length", "3 of 4 prompts, 5 answers match"), ("error", "1 of 4 prompts, 3 answers match"),
     ("", "4 of 4 prompts, 12 answers match")],
)  # fmt: skip
def test_answers_are_filtered_by_status(opened: Any, html: str, status: str, found: str) -> None:
    shown = opened(html)
    shown.page.select_option("#status", status)
    shown.expect_found(found)


def test_answers_are_filtered_by_reward_and_those_without_one_are_no_zeros(opened: Any, html: str) -> None:
    shown = opened(html)
    shown.page.fill("#least", "0")
    shown.page.fill("#most", "0.5")
    shown.expect_found("3 of 4 prompts, 5 answers match")
    shown.page.fill("#most", "-1")
    shown.expect_found("0 of 4")
    assert shown.page.inner_text("#prompt") == "Nothing matches."


def test_a_listed_prompt_leads_to_its_answers(opened: Any, html: str) -> None:
    shown = opened(html)
    shown.page.fill("#search", "nothing has this")
    shown.page.locator("button[data-prompt=p1]").first.click()
    assert "prompt p1" in shown.page.inner_text("#prompt")
    assert shown.page.input_value("#search") == ""


def test_light_and_dark_follow_the_system_and_the_button(opened: Any, html: str) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = opened(html, color_scheme="light"), opened(html, color_scheme="dark")
    colours = [shown.page.evaluate(colour) for shown in (light, dark)]
    assert colours == ["rgb(246, 247, 249)", "rgb(20, 23, 27)"]
    light.page.click("#theme")
    assert light.page.evaluate(colour) == colours[1]
    ink = "getComputedStyle(document.querySelector('figure text')).fill"
    assert light.page.evaluate(ink) == dark.page.evaluate(ink) == "rgb(227, 231, 236)"


def test_on_a_phone_nothing_is_wider_than_the_screen(opened: Any, html: str) -> None:
    shown = opened(html)
    shown.page.set_viewport_size({"width": 360, "height": 740})
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 360
    prompt, answers = (shown.page.locator(name).bounding_box() for name in ("#prompt", "#answers"))
    assert prompt["y"] + prompt["height"] <= answers["y"]


def test_two_thousand_answers_of_ten_thousand_are_browsed_without_waiting(opened: Any) -> None:
    text = "Some words of an answer that goes on for a while. " * 20
    groups = [[{"response_text": f"{text} number {prompt}.{sample}"} for sample in range(8)] for prompt in range(1250)]
    shown = opened(build_report(publish(in_memory(), groups, prompts_per_shard=250)).html)
    shown.expect_found("250 of 250 prompts, 2000 answers match")
    assert shown.page.locator("#prompts li").count() == 100
    shown.page.click("#more")
    assert shown.page.locator("#prompts li").count() == 200
    searched = shown.page.evaluate(
        """() => {
            const begin = performance.now();
            document.getElementById("status").value = "stop";
            document.getElementById("search").value = "number 7";
            document.getElementById("status").dispatchEvent(new Event("input", { bubbles: true }));
            return new Promise((done) => setTimeout(() => done(performance.now() - begin), 0));
        }"""
    )
    assert searched < 1000  # milliseconds; tens of them when nothing else runs
    shown.expect_found(" of 250 prompts")
