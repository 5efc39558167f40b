"""Asks a started template whether it is ready, again and again until it is or its time is over."""

from __future__ import annotations

from dataclasses import dataclass

from torpor.domain.errors import GuestError
from torpor.ports.clock import Clock
from torpor.ports.guest import BurstResult, Guest, Output, ProcessSpec

RETRY_S = 0.2
_TAIL_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Readiness:
    """``command`` (argv, in the template's own environment) or ``code`` (Python in the default context) must succeed.

    Code that is run sees what the warm-up made, and what it leaves is captured with it.
    """

    clock: Clock
    timeout_s: float
    command: tuple[str, ...] = ()
    code: str = ""

    async def __call__(self, guest: Guest) -> None:
        """Returns once it succeeded. Raises: GuestError with the end of its output."""
        ends_s = self.clock.monotonic_s() + self.timeout_s
        while True:
            said: list[str] = []
            left_s = max(RETRY_S, ends_s - self.clock.monotonic_s())
            result = await self._ask(guest, said, left_s)
            if result.error is None and not result.timed_out and not result.exit_code:
                return
            if self.clock.monotonic_s() + RETRY_S >= ends_s:
                raise self._failed(result, "".join(said))
            await self.clock.sleep(RETRY_S)

    async def _ask(self, guest: Guest, said: list[str], timeout_s: float) -> BurstResult:
        async def on_output(piece: Output) -> None:
            said.append(piece.data.decode(errors="replace"))

        if self.command:
            asked = ProcessSpec(self.command, timeout_s=timeout_s)
            return await guest.execute(asked, on_output=on_output)
        return await guest.code(self.code, timeout_s=timeout_s, on_output=on_output)

    def _failed(self, result: BurstResult, said: str) -> GuestError:
        how = f"ended with {result.exit_code}" if result.exit_code is not None else str(result.error or "took too long")
        return GuestError(
            f"cannot make the template: its ready check {how} after {self.timeout_s:g} s of trying; see log_tail",
            log_tail=said[-_TAIL_CHARACTERS:],
        )
