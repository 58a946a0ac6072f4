"""n-step A2C with a gradient window n_g apart from n_s (paper Sec. 3.1, 3.4, Alg. 3)."""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from dvrl.agents.actor_critic import ActorCritic
from dvrl.core import losses, rows, tree
from dvrl.encoders.base import Info
from dvrl.envs.worlds import Worlds
from dvrl.fuse import fusable
from dvrl.learners.config import A2CConfig
from dvrl.learners.group import ALONE, Group
from dvrl.learners.optimiser import Optimiser
from dvrl.rollout.record import record
from dvrl.rollout.segment import Act, Carry, Outcome, Segment, collect


class A2C:
    """Owns the optimiser and the gradient window; experience and belief travel as arguments."""

    def __init__(
        self,
        config: A2CConfig,
        agent: ActorCritic,
        worlds: Worlds,
        generator: torch.Generator,
        group: Group = ALONE,
    ) -> None:
        self.config = config
        self.group = group
        self.agent = agent
        self.worlds = worlds
        self.generator = generator
        # Old activations under new weights are autograd's own doing: no short way there.
        self.recorder = agent.encoder.recorder() if config.window == "clones" else None
        packed = [] if self.recorder is None else self.recorder.packing.parameters
        known = set(map(id, packed))
        self.live = [p for p in agent.parameters() if id(p) not in known]
        """Those that are used as they are, none of a segment's own copies."""
        self.parameters = [*packed, *self.live]
        memory = set(map(id, agent.encoder.memory()))
        self.optimiser = Optimiser(
            config, self.parameters, group, [id(p) in memory for p in self.parameters]
        )
        self.packed = self.optimiser.flat[: sum(rows.place(p.shape) for p in packed)]

    def window(self, carry: Carry) -> tuple[Carry, list[Outcome], dict[str, Float[Tensor, ""]]]:
        """n_g / n_s updates whose gradients reach back to the window's first step.

        The i-th update sends its own n_s-step loss back through i * n_s steps.
        """
        outcomes, updates, infos = [], [], []
        self.open()
        for i in range(self.config.segments):
            closes = i == self.config.segments - 1
            carry, segment, metrics = self.update(carry, retain_graph=not closes)
            # Only what carries no graph is kept: the old losses can go while the window is open.
            outcomes.append(Outcome(segment.score, segment.over))
            updates.append(metrics)
            infos += segment.infos
        means = _means(updates) | _seen(infos)
        # The window is full: the gradient ends here, and the next one may use its memory.
        return tree.tree_map(lambda x: x.detach().clone(), carry), outcomes, means

    def open(self) -> None:
        """A new window begins."""
        if self.recorder is not None:
            self.recorder.open(self.config.segments, self.config.n_steps)

    def update(
        self, carry: Carry, retain_graph: bool
    ) -> tuple[Carry, Segment, dict[str, Float[Tensor, ""]]]:
        """One update (Alg. 3): n_s steps of experience, their loss, one optimiser step."""
        segment, carry = self.experience(carry)
        total, metrics = self._total(segment._replace(infos=()))
        norm = self.optimise(total, retain_graph)
        return carry, segment, metrics | {"grad_norm": norm}

    @fusable
    def _total(self, segment: Segment) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
        terms = self.terms(segment)
        total = losses.combine(terms, self.config.weights)
        metrics = {f"loss/{name}": term.detach().mean() for name, term in terms.items()}
        return total, metrics | {
            "loss/total": total.detach(),
            "value": segment.value.detach().mean(),
        }

    def experience(self, carry: Carry) -> tuple[Segment, Carry]:
        """n_s steps in every world, by the shorter way where the encoder knows one."""
        c = self.config
        if self.recorder is not None:
            self.recorder.begin(self.packed)
            return record(
                self.agent, self.recorder, self.generator, self.worlds, carry, c.n_steps,
                c.bootstrap_cuts,
            )  # fmt: skip
        return collect(self.agent, self.act(), self.worlds, carry, c.n_steps, c.bootstrap_cuts)

    def act(self) -> Act:
        """The agent on parameters that stay as they are while the window is open."""
        if self.config.segments == 1 or self.config.window == "stale":
            return partial(self.agent, generator=self.generator)
        live = {name: p.clone() for name, p in self.agent.named_parameters()}

        def act(*inputs):
            return functional_call(self.agent, live, inputs, {"generator": self.generator})

        return act

    def terms(self, segment: Segment) -> dict[str, Float[Tensor, "T N"]]:
        """The four terms of Eq. 20, not yet weighed or averaged."""
        returns = losses.n_step_returns(
            self.config.reward_scale * segment.reward,
            segment.ended,
            segment.v_end,
            segment.v_boot,
            self.config.gamma,
        )
        adv = losses.advantage(returns, segment.value)
        weight = adv
        if self.config.normalise_advantage:
            weight = losses.standardise(adv.detach(), self.group.mean)
        return {
            "policy": losses.policy_term(segment.log_prob, weight),
            "value": losses.value_term(adv),
            "entropy": losses.entropy_term(segment.entropy),
            "elbo": segment.model_loss,
        }

    def optimise(self, total: Float[Tensor, ""], retain_graph: bool) -> Float[Tensor, ""]:
        """Backward, clip, step; the norm before clipping.

        A gradient that is not a number (a particle's density overflowed) changes nothing: the
        update counts as skipped.
        """
        if self.recorder is None:
            gradients = torch.autograd.grad(
                total, self.live, retain_graph=retain_graph, materialize_grads=True
            )
            return self.optimiser.step(rows.join(gradients))
        leaves = self.recorder.leaves
        found = torch.autograd.grad(
            total, [*leaves, *self.live], retain_graph=retain_graph, materialize_grads=True
        )
        n = len(leaves)
        return self.optimiser.step(self.recorder.gradient(found[:n], found[n:]))


@fusable
def _means(updates: Sequence[dict[str, Tensor]]) -> dict[str, Float[Tensor, ""]]:
    """Over a window; updates without a usable gradient count none."""
    columns = {name: torch.stack([update[name] for update in updates]) for name in updates[0]}
    usable = columns["grad_norm"].isfinite()
    columns["grad_norm"] = torch.where(usable, columns["grad_norm"], 0.0)
    columns["skipped"] = (~usable).float()
    return {name: column.mean() for name, column in columns.items()}


@fusable
def _seen(infos: Sequence[Info]) -> dict[str, Float[Tensor, ""]]:
    return type(infos[0]).metrics(infos)
