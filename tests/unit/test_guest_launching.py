"""Where and as whom a process starts that says neither: as the template says."""

import getpass
import os
from types import SimpleNamespace

import pytest

from torpor_guest.launching import launch
from torpor_guest.processes import Process
from torpor_guest.settings import Refused, Settings


class Recorder:
    """Stands where processes are started, and keeps the orders."""

    def __init__(self):
        self.orders = []

    def start(self, order):
        self.orders.append(order)
        return Process(pid=7)


def order_of(settings, **fields):
    recorder = Recorder()
    burst = SimpleNamespace(fields={"argv": ["true"], "user": "", **fields})
    ends = launch(burst, settings, recorder)
    for end in (ends.stdin, ends.stdout, ends.stderr):
        os.close(end)
    return recorder.orders[0]


@pytest.fixture
def settings(tmp_path):
    return Settings(contained=True, user=getpass.getuser(), workdir=str(tmp_path))


def test_it_starts_as_the_user_and_in_the_folder_of_the_template(settings, tmp_path):
    order = order_of(settings)
    assert (order.user, order.cwd) == (getpass.getuser(), str(tmp_path))


def test_what_the_request_says_goes_before_the_template(settings):
    assert order_of(settings, cwd="/usr").cwd == "/usr"
    with pytest.raises(Refused, match="no-such-user"):
        order_of(settings, user="no-such-user")


def test_a_template_without_a_folder_means_the_home(tmp_path):
    settings = Settings(contained=True, user=getpass.getuser(), workdir="")
    assert order_of(settings, env={"HOME": str(tmp_path)}).cwd == str(tmp_path)


def test_a_folder_that_is_not_there_is_refused(settings):
    with pytest.raises(Refused, match="no directory"):
        order_of(settings, cwd="/no/such/folder")
