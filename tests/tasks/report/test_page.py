"""The page: text stays text, data in it is bounded and says so, and its numbers are those of the figures."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from report_builders import ERROR, FAILED, Page, publish, rewarded
from store_builders import in_memory

from rollmill.tasks.report.build import build_report
from rollmill.tasks.report.page import embedded_json

HOSTILE = "</script><script>hacked()</script><img src=x onerror=hacked()><!-- \u2028\u2029 &lt; {{ 7*7 }} \"' <![CDATA["


@given(st.recursive(st.text() | st.none() | st.integers(), st.lists, max_leaves=8))
def test_json_in_a_page_gives_back_what_it_was_and_holds_no_markup(value: Any) -> None:
    text = str(embedded_json(value))
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")


def test_hostile_text_anywhere_stays_text() -> None:
    row = {
        "prompt_text": f"{HOSTILE} question", "response_text": HOSTILE, "metadata": json.dumps({HOSTILE: HOSTILE}),
        "reward_parts": [{"name": HOSTILE, "value": 1.0}],
    }  # fmt: skip
    failed = {**FAILED, "prompt_text": row["prompt_text"], "metadata": row["metadata"], "reward_error": HOSTILE}
    version = publish(in_memory(), [[{**row, "reward": 1.0}, failed]], metadata={"policy": {"model": HOSTILE}})
    page = Page(build_report(version).html)
    assert [identifier for identifier, _ in page.scripts] == ["figures", "samples", None]
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert not any(tag == "img" for tag, _ in page.elements)
    (group,) = page.data("samples")[0]["groups"]
    assert {answer["text"][0] for answer in group["answers"]} == {HOSTILE, "answer 0.1"}
    assert json.loads(group["metadata"][0]) == {HOSTILE: HOSTILE}
    assert "hacked()" in page.text
    assert "{{ 7*7 }}" in page.text


def test_the_page_names_no_address_to_fetch_from() -> None:
    html = build_report(publish(in_memory(), [[rewarded(0.0), rewarded(1.0)]])).html
    assert set(re.findall(r"https?://[^\"' )<]+", html)) <= {
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/2000/svg",
    }
    assert "default-src 'none'" in html
    page = Page(html)
    assert not [tag for tag, attributes in page.elements if attributes.get("src")]
    assert [attributes["href"] for tag, attributes in page.elements if tag == "link"] == ["data:,"]


def test_ten_thousand_answers_make_a_bounded_page_that_says_what_it_shows() -> None:
    text = "A long answer, <b>with signs</b> that need escaping. " * 20
    groups = [[{"response_text": text, "reward": float((prompt * sample) % 3 == 1)} for sample in range(8)]
              for prompt in range(1250)]  # fmt: skip
    made = build_report(publish(in_memory(), groups, prompts_per_shard=125))
    page = Page(made.html)
    assert len(made.html.encode()) < 4_000_000
    assert "showing 250 of 1,250 prompts, 2,000 of 10,000 answers" in page.words
    assert "all figures above are of all answers" in page.words
    assert sum(len(group["answers"]) for group in page.data("samples")[0]["groups"]) == 2000
    assert made.figures["rows"] == page.data("figures")["rows"] == 10_000
    listed = {attributes["data-prompt"] for _, attributes in page.elements if "data-prompt" in attributes}
    assert listed <= {group["id"] for group in page.data("samples")[0]["groups"]}


def test_the_characters_of_a_page_are_bounded_too() -> None:
    version = publish(in_memory(), [[{"response_text": "<" * 800_000} for _ in range(8)]])
    html = build_report(version).html
    assert len(html) < 6 * 4_000_000 + 200_000
    assert "long texts are cut in the middle" in " ".join(html.split())


def test_headline_numbers_are_in_the_page() -> None:
    version = publish(in_memory(), [[rewarded(1.0), rewarded(0.0), FAILED], [ERROR, ERROR, ERROR]])
    words = Page(build_report(version).html).words
    for said in ("mean reward 0.500 of 2 scored answers", "pass@1 0.500", "pass@3 –", "rows 6", "groups 2",
                 "failed rows 3", "unscored rows 1 their reward failed; not counted as 0", "tokens/s –"):  # fmt: skip
        assert said in words
    assert "3 the prompt is too long" in words
    assert "1 judge: timed out" in words


def test_a_reward_part_that_is_no_number_does_not_spoil_the_page() -> None:
    parts = [{"name": "right", "value": float("nan")}, {"name": "short", "value": float("inf")}]
    page = Page(build_report(publish(in_memory(), [[{"reward_parts": parts}]])).html)
    assert page.data("samples")[0]["groups"][0]["answers"][0]["parts"] == [["right", None], ["short", None]]


def test_a_version_without_any_answer_has_a_page() -> None:
    words = Page(build_report(publish(in_memory(), [[ERROR], [ERROR]])).html).words
    assert "mean reward –" in words
    assert "no prompt has a scored answer" in words
    assert "nothing to draw" in words


def test_two_versions_stand_side_by_side() -> None:
    objects = in_memory()
    before = publish(objects, [[rewarded(0.0), rewarded(1.0)], [rewarded(1.0)] * 2], "first", policy_version=1)
    after = publish(objects, [[rewarded(1.0)] * 2, [rewarded(0.0), rewarded(1.0)]], "second", policy_version=2)
    page = Page(build_report(after, before=before).html)
    assert "mean reward 0.750 was 0.750 the same" in page.words
    assert (
        "Of 2 prompts in both versions, 1 did better in version 2 than in version 1, 1 worse, and 0 the same"
        in page.words
    )
    assert "1/2 2/2 +0.500 +0.500" in page.words
    assert "2/2 1/2 -0.500 -0.500" in page.words
    assert page.data("figures")["compared_with"]["version"] == 1
    assert [shown["name"] for shown in page.data("samples")] == ["version 2", "version 1"]
    assert [len(shown["groups"]) for shown in page.data("samples")] == [2, 2]


def test_runs_of_a_window_are_told_apart() -> None:
    objects = in_memory()
    publish(objects, [[rewarded(0.0)]], "first")
    page = Page(build_report(publish(objects, [[rewarded(1.0)]], "second"), window=2).html)
    assert "answers, in 2 runs" in page.words
    assert "second 1 1 1 1.000 1.000" in page.words
    assert "first 1 1 1 0.000 0.000" in page.words


def test_charts_draw_every_answer_and_no_id_twice() -> None:
    html = build_report(publish(in_memory(), [[rewarded(value / 20) for value in range(20)]])).html
    page = Page(html)
    labels = [attributes["aria-label"] or "" for _, attributes in page.elements if attributes.get("role") == "img"]
    assert len(labels) == 5
    counts = [int(count) for count in re.findall(r": (\d+)", labels[0])]
    assert sum(counts) == 20
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert build_report(publish(in_memory(), [[rewarded(value / 20) for value in range(20)]])).html.count("<svg") == 5
