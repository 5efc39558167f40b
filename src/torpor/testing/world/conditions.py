"""What may go wrong in a world, as probabilities and spans of virtual time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Faults:
    """Of one call of a port, unless it says otherwise.

    crash: the server dies right before or after the call's effect. failure: the call has no effect and says so.
    lost_answer: it has its effect, and fails. repetition: a call that may be repeated is. delay: it takes up to
    ``delay_s_max``. answer_loss, answer_repetition: of a piece that a guest sends.

    Besides there are up to ``storms_max`` storms: the server is killed, a sandbox dies, the machine loses power, a
    store is out for up to ``outage_s_max``, or the wall clock jumps. Each server's clock is up to ``skew_s_max`` off.
    """

    crash: float = 0.002
    failure: float = 0.01
    lost_answer: float = 0.01
    repetition: float = 0.02
    delay: float = 0.3
    delay_s_max: float = 0.5
    answer_loss: float = 0.01
    answer_repetition: float = 0.01
    storms_max: int = 4
    outage_s_max: float = 20.0
    skew_s_max: float = 30.0


NO_FAULTS = Faults(
    crash=0.0,
    failure=0.0,
    lost_answer=0.0,
    repetition=0.0,
    delay=0.3,
    answer_loss=0.0,
    answer_repetition=0.0,
    storms_max=0,
    skew_s_max=0.0,
)
