"""The agent's kept threads, and what a burst's alarms count from."""

import queue
import threading

from torpor_guest.bursts import Alarm, Body, Burst, End, Stopwatch, follow
from torpor_guest.crew import Crew


def test_tasks_run_at_once_each_in_a_thread_of_its_own_and_threads_are_used_again():
    crew, names = Crew(kept_count=2), queue.SimpleQueue()
    together = threading.Barrier(4)

    def meet():
        names.put(threading.get_ident())
        together.wait(30)

    for _ in range(3):
        crew.run(meet)
    together.wait(30)
    first = {names.get() for _ in range(3)}
    assert len(first) == 3
    seen = set()
    while not seen & first:  # a thread rests a moment after its task has ended
        crew.run(lambda: names.put(threading.get_ident()))
        seen.add(names.get())


def burst():
    return Burst(1, {}, None, Body(lambda _: None))


def test_alarms_count_from_when_the_code_began():
    stopwatch, one, gone_off = Stopwatch(), burst(), []
    started_s = stopwatch.active_s()

    def begin_late():
        threading.Event().wait(0.2)
        one.begun_s = stopwatch.active_s()

    threading.Thread(target=begin_late).start()

    def alarm():
        gone_off.append(stopwatch.active_s())
        one.events.put((End.DONE, "done"))

    end, value, count = follow(one, stopwatch, [Alarm(0.1, alarm)], lambda: None, start=Alarm(60.0, lambda: None))
    assert (end, value, count) == (End.DONE, "done", 1)
    assert gone_off[0] - one.begun_s >= 0.1
    assert one.begun_s - started_s >= 0.2


def test_code_that_never_begins_meets_the_alarm_of_the_start_alone():
    stopwatch, one, gone_off = Stopwatch(), burst(), []

    def give_up():
        gone_off.append("start")
        one.events.put((End.EXITED, -9))

    alarms = [Alarm(0.05, lambda: gone_off.append("time-out"))]
    end, value, count = follow(one, stopwatch, alarms, lambda: None, start=Alarm(0.2, give_up))
    assert (end, value, count, gone_off) == (End.EXITED, -9, 1, ["start"])
