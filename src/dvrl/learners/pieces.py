"""Worlds on the host: a window is captured in pieces, and the host steps the worlds between them.

`learner.window` is one Python function; where it asks the worlds, one CUDA graph ends and the next
begins. The pieces share one pool of memory and are replayed in the order of their capture, so a
tensor of one piece is there for all later ones, as it was when they were captured.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from dvrl.core import tree
from dvrl.envs.worlds import HostWorlds, Look, Step, Worlds, nothing
from dvrl.learners.a2c import A2C
from dvrl.learners.captured import WARM_UPS, Captured, Cuda, Moment, Recording
from dvrl.learners.config import Rates
from dvrl.learners.engine import pack
from dvrl.learners.gate import Gates
from dvrl.rollout.segment import Carry


class Piece(NamedTuple):
    """Operations between two places where the host comes in, and what it does behind them."""

    graph: Recording
    action: Tensor | None = None
    """What the worlds are to do next."""
    answer: UInt8[Tensor, " B"] | None = None
    """To be filled with what they answer: the host takes the last action to them, and waits."""
    only_if_cut: bool = False
    """Whether it is replayed only when the last step cut an episode."""


class Film(NamedTuple):
    """A captured window."""

    pieces: list[Piece]
    packed: Float[Tensor, " R"]
    """Its results."""
    action: Tensor
    """Where actions come to the host."""


class Scissors:
    """A capture that can be cut."""

    def __init__(self, capture: Callable[[], AbstractContextManager[Recording]]) -> None:
        self.pieces: list[Piece] = []
        self._capture = capture
        self._open = ExitStack()

    def __enter__(self) -> "Scissors":
        self._graph = self._open.enter_context(self._capture())
        return self

    def cut(self, **behind: Any) -> None:
        """End a piece, with what is to be done behind it, and begin the next."""
        self._open.close()
        self.pieces.append(Piece(self._graph, **behind))
        self._graph = self._open.enter_context(self._capture())

    def __exit__(self, *error: object) -> None:
        # What went wrong within says more than that the capture then could not be ended.
        with suppress(RuntimeError) if error[0] else nullcontext():
            self._open.close()
        self.pieces.append(Piece(self._graph))


class StandIn(Worlds):
    """In the worlds' place while a window is warmed up or captured: it steps nothing.

    Its answers are memory that the host fills before the next piece is replayed. Every step of a
    window has memory of its own, since the update reads those of a whole segment.
    """

    exact_resume, by_row, cut = False, (), True

    def __init__(
        self,
        worlds: HostWorlds,
        answers: UInt8[Tensor, "T B"],
        looks: Float[Tensor, "T N"],
        scissors: Scissors | None,
    ) -> None:
        self.n = worlds.n
        self.worlds = worlds
        self.scissors = scissors
        self._answers = iter(answers)
        self._looks = iter(looks)
        self._look = looks[0]

    def step(self, action: Tensor, *, meanwhile: Callable[[], None] = nothing) -> Step:
        answer, self._look = next(self._answers), next(self._looks)
        if self.scissors and meanwhile is nothing:
            self.scissors.cut(action=action, answer=answer)
        elif self.scissors:
            self.scissors.cut(action=action)
            meanwhile()
            self.scissors.cut(answer=answer)
        else:
            meanwhile()
        return self.worlds.read(answer)

    def if_cut(self, look: Look, final_obs: Tensor) -> Float[Tensor, " N"]:
        """A piece of its own. Where it is not replayed old values remain; nobody reads them, since
        no row was cut."""
        if self.scissors:
            self.scissors.cut()
        self._look.copy_(look(self.worlds.seen(final_obs)))
        if self.scissors:
            self.scissors.cut(only_if_cut=True)
        return self._look


class Pieces(Captured):
    """A window as a row of replays with the worlds' steps between them."""

    depth = 1  # the host has to be there anyway

    def __init__(self, learner: A2C, worlds: HostWorlds, carry: Carry, cuda: Cuda) -> None:
        super().__init__(learner, carry, (learner.generator,), cuda)
        self.worlds = worlds
        n_steps, o_t = learner.config.n_grad, carry.o_t
        self._answers = torch.zeros(
            n_steps, len(worlds.blank()), dtype=torch.uint8, device=o_t.device
        )
        self._looks = o_t.new_zeros(n_steps, worlds.n)
        self._film: Film | None = None
        ahead = worlds.apart and not learner.config.bootstrap_cuts
        self._gates = cuda.gates() if ahead else None

    @property
    def captured(self) -> bool:
        return self._film is not None

    def launch(self, rates: Rates) -> None:
        film = self._film = self._film or self._capture()
        with self.cuda.running():
            self.learner.optimiser.set_rates(rates)
            if self._gates is None:
                self._in_turns(film)
            else:
                self._ahead(film, self._gates)
            self._hand_over(film.packed)

    def _in_turns(self, film: Film) -> None:
        """A piece is launched when the worlds have answered."""
        decided = self.cuda.mark()
        for piece in film.pieces:
            if piece.only_if_cut and not self.worlds.cut:
                continue
            self.cuda.replay(piece.graph)
            if piece.action is not None:
                self.cuda.copy(film.action, piece.action)
                decided = self.cuda.mark()
            if piece.answer is not None:
                # What is done meanwhile is under way by now: worlds take all of a host's cores.
                given = self._exchange(film, decided)
                size = len(given) if self.worlds.cut else self.worlds.usual
                self.cuda.copy(piece.answer[:size], given[:size])

    def _ahead(self, film: Film, gates: Gates) -> None:
        """A piece is launched while the one before it still decides, whether the worlds will cut an
        episode or not. A gate keeps it from beginning before they have answered."""
        given = self.worlds.place()[: self.worlds.usual]
        decided: deque[Moment] = deque()
        try:
            for piece in film.pieces:
                self.cuda.replay(piece.graph)
                if piece.action is not None:
                    self.cuda.copy(film.action, piece.action)
                    decided.append(self.cuda.mark())
                if piece.answer is not None:
                    gates.shut()
                    self.cuda.copy(piece.answer[: self.worlds.usual], given)
                    if len(decided) > 1:
                        self._exchange(film, decided.popleft())
                        gates.open()
            while decided:
                self._exchange(film, decided.popleft())
                gates.open()
        finally:
            gates.open_all()  # else the device would wait for ever

    def _exchange(self, film: Film, decided: Moment) -> UInt8[Tensor, " B"]:
        """Take the action to the worlds, and wait for what they answer."""
        decided.synchronize()
        self.worlds.send(film.action)
        return self.worlds.receive_on_host()

    def _capture(self) -> Film:
        """Warm up, record, and leave everything as it was; the worlds are not stepped."""
        pool = self.cuda.new_pool()
        with self._unchanged(), self.cuda.compiling():
            for _ in range(WARM_UPS):
                self._window(None)
            with Scissors(lambda: self.cuda.capture(self.generators, pool)) as scissors:
                packed = self._window(scissors)
        pieces = scissors.pieces
        action = next(piece.action for piece in pieces if piece.action is not None)
        return Film(pieces, packed, self.cuda.landing(action))

    def _window(self, scissors: Scissors | None) -> Float[Tensor, " R"]:
        """One window in place; what the host wants to know of it as one vector."""
        # Nobody will reset or save it.
        self.learner.worlds = StandIn(  # type: ignore[abstract]
            self.worlds, self._answers, self._looks, scissors
        )
        try:
            carry, outcomes, means = self.learner.window(self.carry)
        finally:
            self.learner.worlds = self.worlds
        self._names = list(means)
        tree.copy(self.carry, carry)
        return pack(outcomes, means)
