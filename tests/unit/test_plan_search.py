"""The search of the planner over a workload of its own: bounds, time, interrupts, and the Pareto front."""

from random import Random

import pytest

from weft.plan.search import Group, Search, Workload, pareto_front


class Squares(Workload[int, int, list[int]]):
    """Squares of numbers, first of the even ones, then of the odd ones if their bound is below the best so far."""

    def __init__(self):
        self.limit, self.evaluated, self.kept, self.forgotten = 1000, [], [], False

    def groups(self, search):
        found = yield Group([8, 6, 4], self.evaluate, lambda at: (at, 3, "even"), simulates=True)
        self.limit = min(found, default=self.limit)
        found += yield Group([1, 3, 5, 7], self.evaluate, at_once=2)
        return found

    def evaluate(self, some):
        self.evaluated += some
        return [one * one for one in some]

    def objectives(self, planned):
        return (planned,)

    def excludes(self, candidate):
        return candidate * candidate > self.limit

    def keep(self):
        self.kept = list(self.evaluated)

    def forget(self):
        self.forgotten = True


def test_bounds_exclude_candidates_that_later_groups_need_not_try():
    seen, work = [], Squares()
    assert Search(work, progress=lambda *said: seen.append(said)).run() == [64, 36, 16, 1, 9]
    assert work.evaluated == [8, 6, 4, 1, 3]
    assert seen == [(0, 3, "even"), (1, 3, "even"), (2, 3, "even")]
    assert work.forgotten


def test_without_time_nothing_is_simulated_and_what_bounds_leave_is_untried():
    work = Squares()
    search = Search(work, budget_s=0.0)
    assert search.run() == [1, 9, 25, 49]
    assert search.untried == [8, 6, 4]


@pytest.mark.parametrize(("budget_s", "shares"), [(10.0, [0, 0.4, 0.8]), (float("inf"), [0, 1 / 3, 2 / 3])])
def test_the_time_left_is_that_of_the_budget_if_it_ends_before_the_candidates(monkeypatch, budget_s, shares):
    class Watching:
        def __init__(self):
            self.expected = []

        def __call__(self, *said):
            pass

        def expect(self, share):
            self.expected.append(share)

    clock, work, watching = [0.0], Squares(), Watching()
    monkeypatch.setattr("weft.plan.search.time.process_time", lambda: clock[0])

    def evaluate(some):
        clock[0] += 4.0
        return Squares.evaluate(work, some)

    work.evaluate = evaluate
    Search(work, budget_s, watching).run()
    assert watching.expected == pytest.approx(shares)


def test_what_is_on_disk_takes_no_time():
    work = Squares()
    work.is_kept = lambda candidate: candidate == 8
    search = Search(work, budget_s=0.0)
    assert search.run()[0] == 64
    assert search.untried == [6, 4]


def test_an_interrupted_search_keeps_what_it_simulated():
    work = Squares()

    def interrupt(at, total, said):
        if at == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Search(work, progress=interrupt).run()
    assert work.kept == [8, 6]
    assert not work.forgotten


def test_a_front_holds_what_no_other_point_beats():
    draw = Random(3)
    points = [tuple(draw.randint(0, 9) for _ in range(3)) for _ in range(60)]

    def is_beaten(one):
        return any(other != one and all(a <= b for a, b in zip(other, one, strict=True)) for other in points)

    assert set(pareto_front(points, lambda one: one)) == {one for one in points if not is_beaten(one)}


def test_plans_that_are_hardly_faster_are_not_on_the_front():
    assert pareto_front([(1, 10.0), (2, 9.9), (3, 9.7)], lambda one: one, alike=0.02) == ((1, 10.0), (3, 9.7))
