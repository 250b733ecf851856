"""What is computed while the client waits: each caller has a quota of time, each process few places."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from rest_framework.renderers import JSONRenderer

from api import parsers, pure
from api.estimates.schema import EXAMPLES
from api.urls import urlpatterns
from kernels.simulators import SIMULATORS
from tests.api.conftest import Api
from tests.api.helpers import assert_problem, described_path

pytestmark = pytest.mark.django_db

ESTIMATE = ("/estimates/kv-cache", EXAMPLES["kv-cache"])
SIMULATION = ("/simulations/batching", SIMULATORS["batching"].example)
POSTS = [route for route in urlpatterns if hasattr(getattr(route.callback, "cls", None), "post")]
PURE = [route for route in POSTS if issubclass(route.callback.cls, pure.PureView)]


class Clock:
    """Processor time, as it is told."""

    def __init__(self):
        self.now = 0.0

    def thread_time(self):
        return self.now

    def slows(self, function, seconds):
        def slow(*args, **options):
            self.now += seconds
            return function(*args, **options)

        return slow


@pytest.fixture
def clock(monkeypatch):
    told = Clock()
    monkeypatch.setattr(pure, "time", told)
    return told


@pytest.fixture
def slow(clock, monkeypatch, redis_server, settings):
    """Reading a body takes 5 s, and an address has 8 s."""
    settings.ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE, settings.TOKEN_COMPUTING_SECONDS_PER_MINUTE = 8, 12
    monkeypatch.setattr(parsers, "json_body", clock.slows(parsers.json_body, 5))


def statuses(caller, times, path, body):
    return [caller.post(path, body).status_code for _ in range(times)]


@pytest.mark.parametrize(("path", "body"), [ESTIMATE, SIMULATION])
def test_who_used_up_the_time_is_told_when_there_is_more_and_what_helps(api, slow, path, body):
    assert statuses(api, 2, path, body) == [200, 200]
    answer = api.post(path, body)
    problem = assert_problem(answer, 429, says=["an address may use 8 seconds", "per 60 s", "send a token"])
    assert problem["type"].endswith("quota-exceeded")
    assert 1 <= int(answer["Retry-After"]) <= 60
    assert answer["RateLimit-Policy"] == '"computing";q=8;w=60'


def test_all_that_is_computed_counts_together_and_nothing_else(api, slow):
    assert statuses(api, 1, *ESTIMATE) + statuses(api, 1, *SIMULATION) == [200, 200]
    assert_problem(api.post(*SIMULATION), 429)
    assert_problem(api.post(*ESTIMATE), 429)
    for path in ("/estimates", "/simulations", "/models", "/engines"):
        assert api.get(path).status_code == 200
    assert api.get(ESTIMATE[0]).status_code == 405


def test_a_token_has_more_and_each_caller_its_own(api, alice, bob, slow):
    assert statuses(api, 3, *ESTIMATE) == [200, 200, 429]
    assert statuses(Api(address="203.0.113.8"), 1, *ESTIMATE) == [200]
    assert statuses(alice, 4, *ESTIMATE) == [200, 200, 200, 429]
    assert_problem(alice.post(*ESTIMATE), 429, says=["A token may use 12 seconds", "ask for less"])
    assert statuses(bob, 1, *ESTIMATE) == [200]


def test_what_is_refused_takes_time_as_well(api, slow):
    assert statuses(api, 3, ESTIMATE[0], {"no": "such field"}) == [400, 400, 429]


def test_once_it_is_used_up_no_body_is_read(api, slow, clock):
    statuses(api, 2, *ESTIMATE)
    before = clock.now
    assert_problem(api.post(ESTIMATE[0], b"{"), 429)
    assert clock.now == before


@pytest.mark.usefixtures("redis_server")
def test_writing_the_answer_counts(api, clock, monkeypatch, settings):
    settings.ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE = 8
    monkeypatch.setattr(JSONRenderer, "render", clock.slows(JSONRenderer.render, 9))
    answer = api.post(*SIMULATION)
    assert answer.json()["events"]
    assert_problem(api.post(*SIMULATION), 429)


@pytest.mark.usefixtures("redis_server")
def test_a_new_key_costs_something_and_the_same_key_again_nothing(api, clock, settings):
    settings.ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE = 1

    def answered(keys):
        answers = [api.post(*ESTIMATE, **{"idempotency-key": key}).status_code for key in keys]
        return answers.count(200)

    assert answered(["the same"] * 50) == 50
    assert 0 < answered(f"k{n}" for n in range(50)) < 25


def test_without_redis_everybody_is_answered(api, slow, redis_server):
    redis_server.stop()
    assert statuses(api, 5, *ESTIMATE) == [200] * 5


@pytest.mark.usefixtures("redis_server")
def test_a_quota_of_nothing_refuses_everything(api, settings):
    settings.ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE = 0
    assert statuses(api, 2, *ESTIMATE) == [429, 429]


# --- Places ----------------------------------------------------------------------------------


@pytest.fixture
def one_place(monkeypatch, settings):
    settings.MAX_COMPUTING = 1
    monkeypatch.setattr(pure, "_places", threading.BoundedSemaphore(1))


@pytest.mark.usefixtures("one_place")
def test_when_every_place_is_taken_the_next_is_told_to_come_back(api, alice, monkeypatch):
    started, may_end = threading.Event(), threading.Event()
    simulator = SIMULATORS["batching"]

    def long(body):
        started.set()
        assert may_end.wait(30)
        return simulator.simulate(body)

    monkeypatch.setitem(SIMULATORS, "batching", SimpleNamespace(simulate=long))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(api.post, *SIMULATION)
        try:
            assert started.wait(30)
            answer = Api(address="203.0.113.9").post(*ESTIMATE)
            problem = assert_problem(answer, 503, says=["1 estimates, simulations", "Try again"])
            assert problem["type"].endswith("unavailable")
            assert answer["Retry-After"] == "1"
            assert api.get("/engines").status_code == 200
        finally:
            may_end.set()
        assert first.result().status_code == 200
    assert api.post(*ESTIMATE).status_code == 200


@pytest.mark.usefixtures("one_place")
def test_a_place_is_given_back_whatever_happens(api, monkeypatch):
    assert api.post(ESTIMATE[0], {}).status_code == 400
    with monkeypatch.context() as broken:
        broken.setitem(SIMULATORS, "batching", SimpleNamespace(simulate=lambda _: 1 / 0))
        assert_problem(api.post(*SIMULATION), 500)
    assert api.post(*ESTIMATE).status_code == 200


@pytest.mark.usefixtures("one_place")
def test_whose_body_is_still_coming_holds_no_place(api, monkeypatch):
    read, others = parsers.json_body, []

    def slowly(request):
        if not others:
            others.append(None)
            others.append(api.post(*ESTIMATE).status_code)
        return read(request)

    monkeypatch.setattr(parsers, "json_body", slowly)
    assert api.post(*ESTIMATE).status_code == 200
    assert others[1:] == [200]


# --- What is said of it ----------------------------------------------------------------------


def test_the_limits_are_listed(api, settings):
    settings.ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE, settings.TOKEN_COMPUTING_SECONDS_PER_MINUTE = 3, 5
    limits = api.get("/engines").json()["limits"]
    assert limits["computing_seconds_per_minute"] == {"anonymous": 3, "token": 5}
    assert limits["computing_at_once"] == settings.MAX_COMPUTING


def test_whatever_computes_at_once_is_bounded_and_says_so(document):
    """A POST that makes no resource is pure; a new one that forgets it is found here."""
    areas = {str(route.pattern).partition("/")[0] for route in PURE}
    assert areas == {"estimates", "simulations", "grade", "assignments"}
    for route in POSTS:
        operation = document["paths"][described_path(route)]["post"]
        makes_something = {"201", "202"} & set(operation["responses"])
        assert makes_something or route in PURE, route
        assert {"429", "503"} <= set(operation["responses"]), route
