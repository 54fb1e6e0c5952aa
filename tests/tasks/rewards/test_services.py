"""Reward services and judges: tried again while it helps, never scored 0 by accident, and keys stay where they are."""

import io
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollmill.errors import JobError
from rollmill.tasks.figures import reward_stats
from rollmill.tasks.rewards.build_plain import plain_config
from rollmill.tasks.rewards.scoring import Scorer, build_rewards

MakeTable = Callable[..., pa.Table]
MakeScorer = Callable[..., Scorer]
Reply = tuple[int, dict[str, str], bytes] | None
KEY = "sk-very-secret-value"


class FakeService:
    """A real HTTP server that answers as `script` says: status, headers and body, or None to hang up."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.script: Callable[[dict[str, Any]], Reply] = lambda request: scores([1.0] * len(request["responses"]))
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/score"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with service._lock:
                    service.requests.append(request)
                    service.keys.append(self.headers["Authorization"])
                    service._at_once += 1
                    service.most_at_once = max(service.most_at_once, service._at_once)
                reply = service.script(request)
                with service._lock:
                    service._at_once -= 1
                self.close_connection = True
                if reply is None:
                    return
                status, headers, body = reply
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        return Handler

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def scores(values: object) -> Reply:
    return 200, {}, json.dumps({"rewards": values}).encode()


def says(text: str) -> Reply:
    return 200, {}, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


@pytest.fixture
def service() -> Iterator[FakeService]:
    service = FakeService()
    yield service
    service.close()


def rewards(table: pa.Table) -> list[float | None]:
    values: list[float | None] = table["reward"].to_pylist()
    return values


def test_a_service_gets_flat_batches_with_the_columns_it_is_to_see(
    service: FakeService, response_table: MakeTable, scorer: MakeScorer
) -> None:
    service.script = lambda request: scores([float(len(text)) for text in request["responses"]])
    job = scorer({"type": "http", "url": service.url, "columns": ["answer"], "answers_per_call": 4, "concurrency": 1})
    columns = [{"answer": b, "private": "x"} for b in range(3)]
    assert rewards(job.score_table(response_table([["a", "bb"], ["c", "dd"], ["eee", "f"]], columns))) == [
        1,
        2,
        1,
        2,
        3,
        1,
    ]
    assert service.requests == [
        {
            "prompts": ["prompt 0", "prompt 0", "prompt 1", "prompt 1"],
            "responses": ["a", "bb", "c", "dd"],
            "columns": {"answer": [0, 0, 1, 1]},
        },
        {"prompts": ["prompt 2", "prompt 2"], "responses": ["eee", "f"], "columns": {"answer": [2, 2]}},
    ]
    with pytest.raises(JobError, match="needs the column answer; the prompts have private"):
        job.check(["private"])


def test_requests_run_at_once_up_to_the_limit(
    service: FakeService, response_table: MakeTable, scorer: MakeScorer
) -> None:
    together = threading.Barrier(3, timeout=20)

    def wait_for_the_others(request: dict[str, Any]) -> Reply:
        together.wait()
        return scores([1.0])

    service.script = wait_for_the_others
    job = scorer({"type": "http", "url": service.url, "answers_per_call": 1, "concurrency": 3})
    assert rewards(job.score_table(response_table([["a"]] * 6))) == [1.0] * 6
    assert service.most_at_once == 3


@pytest.mark.parametrize("trouble", [408, 429, 500, 503, None], ids=str)
def test_what_passes_is_tried_again(
    service: FakeService, response_table: MakeTable, scorer: MakeScorer, trouble: int | None
) -> None:
    replies = iter([None if trouble is None else (trouble, {}, b"busy")] * 2 + [scores([0.5, 0.25])])
    service.script = lambda _request: next(replies)
    job = scorer({"type": "http", "url": service.url})
    assert rewards(job.score_table(response_table([["a", "b"]]))) == [0.5, 0.25]
    assert len(service.requests) == 3


def test_a_service_is_given_the_time_it_asks_for(
    service: FakeService, response_table: MakeTable, scorer: MakeScorer
) -> None:
    times: list[float] = []

    def script(request: dict[str, Any]) -> Reply:
        times.append(time.monotonic())
        return (429, {"Retry-After": "2"}, b"") if len(times) == 1 else scores([1.0])

    service.script = script
    assert rewards(scorer({"type": "http", "url": service.url}).score_table(response_table([["a"]]))) == [1.0]
    assert times[1] - times[0] >= 2


def test_a_service_that_stays_down_fails_every_answer_in_time_and_works_again_after(
    service: FakeService, response_table: MakeTable, scorer: MakeScorer
) -> None:
    down: list[Reply] = [(503, {}, b"down for maintenance")]
    service.script = lambda request: down[0] if down else scores([1.0] * len(request["responses"]))
    job = scorer(
        {"type": "http", "url": service.url, "answers_per_call": 2, "seconds_until_failure": 1, "concurrency": 1}
    )
    table = response_table([["a", "b"]] * 20)
    started = time.monotonic()
    failed = job.score_table(table)
    assert time.monotonic() - started < 10  # the batches after the first failure do not wait again
    assert rewards(failed) == [None] * 40
    assert "503 Service Unavailable: down for maintenance" in failed["reward_error"][39].as_py()
    down.clear()
    assert rewards(job.score_table(table)) == [1.0] * 40


@pytest.mark.slow
@pytest.mark.parametrize("patience", [5, 120])
def test_a_service_that_is_down_for_half_a_minute_costs_nothing_with_patience_and_no_zero_without(
    service: FakeService, response_table: MakeTable, scorer: MakeScorer, patience: int
) -> None:
    up_from = time.monotonic() + 30
    service.script = lambda request: (
        scores([0.5] * len(request["responses"])) if time.monotonic() > up_from else (503, {}, b"restarting")
    )
    job = scorer({"type": "http", "url": service.url, "answers_per_call": 4, "seconds_until_failure": patience})
    table = job.score_table(response_table([["a", "b"]] * 20))
    counts = reward_stats(table)
    if patience > 30:
        assert time.monotonic() > up_from
        assert (rewards(table), counts["scored"], counts["reasons"]) == ([0.5] * 40, 40, {})
    else:
        assert (rewards(table), counts["unscored"], len(counts["reasons"])) == ([None] * 40, 40, 1)


def test_no_service_at_all_is_a_failure_by_name(
    service: FakeService, response_table: MakeTable, scorer: MakeScorer
) -> None:
    service.close()
    job = scorer({"type": "http", "url": service.url, "seconds_until_failure": 0})
    table = job.score_table(response_table([["a", "b"]]))
    assert rewards(table) == [None, None]
    assert "ConnectError" in table["reward_error"][0].as_py()


def test_a_service_that_is_too_slow_is_a_failure_by_name(
    service: FakeService, response_table: MakeTable, scorer: MakeScorer
) -> None:
    release = threading.Event()

    def slow(request: dict[str, Any]) -> Reply:
        release.wait(20)
        return scores([1.0])

    service.script = slow
    job = scorer({"type": "http", "url": service.url, "seconds_per_request": 0.2, "seconds_until_failure": 0})
    table = job.score_table(response_table([["a"]]))
    release.set()
    assert rewards(table) == [None]
    assert "ReadTimeout" in table["reward_error"][0].as_py()


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((200, {}, b"<html>welcome</html>"), "not JSON"),
        ((200, {}, b"{}"), "without a list of rewards"),
        ((200, {}, b'{"rewards": 1.0}'), "without a list of rewards"),
        ((200, {}, b'["0.5", "x"]'), "str '0.5', not a number"),
        ((200, {}, b"[NaN, Infinity]"), "not a finite number"),
        ((401, {}, b"no"), "401 Unauthorized"),
        ((404, {}, b"no"), "404 Not Found"),
        ((302, {"Location": "/"}, b""), "302 Found"),
    ],
)
def test_what_is_not_an_answer_fails_by_name_after_one_request(
    service: FakeService, response_table: MakeTable, scorer: MakeScorer, reply: Reply, reason: str
) -> None:
    service.script = lambda _request: reply
    table = scorer({"type": "http", "url": service.url}).score_table(response_table([["a", "b"]]))
    assert rewards(table) == [None, None]
    assert reason in table["reward_error"][0].as_py()
    assert len(service.requests) == 1


@pytest.mark.parametrize("refusal", ["fewer", "status"])
def test_a_request_that_is_refused_for_one_answer_costs_that_answer(
    service: FakeService, response_table: MakeTable, scorer: MakeScorer, refusal: str
) -> None:
    def script(request: dict[str, Any]) -> Reply:
        if refusal == "status" and "bad" in request["responses"]:
            return 422, {}, b"cannot read this"
        return scores([1.0 for text in request["responses"] if text != "bad"])

    service.script = script
    table = scorer({"type": "http", "url": service.url}).score_table(
        response_table([["a", "b", "bad"], ["c", "d", "e"]])
    )
    assert rewards(table) == [1.0, 1.0, None, 1.0, 1.0, 1.0]
    assert ("0 scores for 1 answers" if refusal == "fewer" else "422") in table["reward_error"][2].as_py()


def test_an_answer_that_the_service_could_not_judge_is_null(
    service: FakeService, response_table: MakeTable, scorer: MakeScorer
) -> None:
    service.script = lambda _request: (200, {}, b"[0, null]")
    table = scorer({"type": "http", "url": service.url}).score_table(response_table([["a", "b"]]))
    assert rewards(table) == [0.0, None]
    assert table["reward_status"].to_pylist() == ["ok", "failed"]


JUDGE = {"type": "judge", "model": "grader", "template": "{{ prompt }}|{{ response }}|{{ ground_truth }}|{{ level }}"}


def test_a_judge_is_asked_with_the_template_and_its_score_is_read(
    service: FakeService, response_table: MakeTable, scorer: MakeScorer
) -> None:
    replies = {"good": "At first score: 2. In the end Score: 9.5", "odd": "Splendid!", "wild": "score = 11"}
    service.script = lambda request: says(replies[request["messages"][0]["content"].split("|")[1]])
    job = scorer({**JUDGE, "url": service.url})
    columns = [{"answer": "4", "level": 3}]
    table = job.score_table(response_table([["good", "odd", "wild"]], columns))
    assert rewards(table) == [9.5, None, None]
    assert table["reward_error"].to_pylist() == [
        None,
        "judge: the judge gave no score: 'Splendid!'",
        "judge: the judge's score 11 is not between 0 and 10",
    ]
    first = min(service.requests, key=lambda request: request["messages"][0]["content"])
    assert first == {
        "model": "grader",
        "messages": [{"role": "user", "content": "prompt 0|good|4|3"}],
        "temperature": 0.0,
        "max_tokens": 512,
    }
    with pytest.raises(JobError, match="needs the column level"):
        job.check(["answer"])
    with pytest.raises(JobError, match="needs one of the columns answer"):
        job.check(["level"])


@pytest.mark.parametrize("body", [b"{}", b'{"choices": []}', b"[1]", b'{"choices": [{"message": {"content": null}}]}'])
def test_a_judge_that_answers_something_else_is_a_failure(
    service: FakeService, response_table: MakeTable, scorer: MakeScorer, body: bytes
) -> None:
    service.script = lambda _request: (200, {}, body)
    table = scorer({**JUDGE, "url": service.url, "template": "{{ response }}"}).score_table(response_table([["a"]]))
    assert rewards(table) == [None]
    assert "answered with no" in table["reward_error"][0].as_py()


@pytest.mark.parametrize("status", [200, 401, 400, 503])
def test_a_key_reaches_the_service_and_is_found_nowhere_else(
    service: FakeService,
    response_table: MakeTable,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    status: int,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    service.script = lambda request: (
        status,
        {},
        f"[{len(request['responses'])}.0]".encode() if status == 200 else KEY.encode(),
    )
    config = plain_config({"type": "http", "url": service.url, "api_key_env": "JUDGE_KEY", "seconds_until_failure": 0})
    job = build_rewards([config])
    table = job.score_table(response_table([["a"]]))
    assert service.keys == [f"Bearer {KEY}"]
    file = io.BytesIO()
    pq.write_table(table, file)
    printed = capfd.readouterr()
    seen = [caplog.text, printed.out, printed.err, config.model_dump_json(), repr(config), repr(job), job.fingerprint]
    assert KEY not in " ".join([*seen, str(table.to_pylist())])
    assert KEY.encode() not in file.getvalue()


def test_a_key_may_be_a_secret_that_the_caller_can_load(service: FakeService, response_table: MakeTable) -> None:
    config = plain_config({"type": "http", "url": service.url, "api_key_secret": "judge-key"})
    build_rewards([config], load_secret={"judge-key": KEY}.__getitem__).score_table(response_table([["a"]]))
    assert service.keys == [f"Bearer {KEY}"]
    with pytest.raises(JobError, match=r"rewards\[0\]: the secret 'judge-key' can only be read within a flow"):
        build_rewards([config])


def test_a_key_that_is_not_set_is_found_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    config = plain_config({"type": "http", "url": "http://localhost/", "api_key_env": "NO_SUCH_KEY"})
    with pytest.raises(JobError, match=r"rewards\[0\]: the environment variable NO_SUCH_KEY"):
        build_rewards([config])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "ftp://x"}, "http:// or https://"),
        ({"url": "localhost:8000"}, "http:// or https://"),
        ({"url": "https://user:key@host/"}, "must not hold a user or a password"),
        ({"url": "http://h/", "api_key": KEY}, "Extra inputs"),
        ({"url": "http://h/", "api_key_env": "A", "api_key_secret": "b"}, "not both"),
        ({"url": "http://h/", "template": "{{ a"}, "template cannot be read"),
        ({"url": "http://h/", "pattern": "a"}, "must have one group, it has 0"),
        ({"url": "http://h/", "pattern": "("}, "not a regular expression"),
        ({"url": "http://h/", "lowest": 3, "highest": 3}, "lowest must be below highest"),
    ],
)
def test_a_wrong_service_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain_config({**JUDGE, **fields})
