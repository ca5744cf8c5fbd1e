"""One policy object for every engine: entropies in, temperatures out (design 1.3; ReSET, arXiv 2606.13233).

A request's state is one column of an int64 tensor and one row of a ring buffer, so a step is some forty small
tensor operations whatever the batch: no loop over requests, nothing read back to the host, and the whole is
capturable in a CUDA graph. Sums are exact integers of 2^-22 nat; means are compared as cross products
(S_step * n_all > S_all * n_step), so neither order nor rounding can flip a decision. Products stay below 2^63
for 2^18 tokens of the largest entropies (16 nats); a longer request is safe while its mean entropy is smaller in
proportion.

How to recompute a temperature from a trace. Entropies are multiples of 2^-22, printed exactly. tau_0 is not
rounded: H < tau_0 compares the printed numbers. A mean is S/n in float64, correctly rounded; since H and S/n
differ by at least 2^-22/n when they differ at all, H < S/n gives in float64 what H * n < S gives in integers.
"uncertain" needs the integers: two means can agree in float64 and still differ. `ema` is float64 throughout:
e += (H - e) / w from e = H_0, compared with the global mean as printed.

What is written per token is computed only when asked for (see StepOutput): decoding without a trace pays nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from resetcli.policy.boundaries import BoundaryTable
from resetcli.policy.entropy import TICKS, from_ticks
from resetcli.policy.settings import PolicySettings

_SUM_ALL, _SUM_STEP, _SUM_WINDOW, _N_ALL, _N_STEP, _STEP, _AUTOMATON = range(7)
_MAX_ENTROPY = 64.0  # nats; more than any vocabulary allows, and NaN and inf fail the comparison


@dataclass
class StepOutput:
    """What a policy decided for one token of each row; None where the policy does not use it.

    Tensors [B] on the policy's device: ``temperature`` float32 (0 is argmax); ``failed`` bool, the row's entropy
    was NaN or infinite; ``uncertain``, ``boundary`` bool; ``step`` int64, counted from 0. Derived when first
    read, float64 nats: ``entropy`` (rounded to 2^-22), ``step_entropy``, ``global_mean``, ``tau`` (NaN in rows
    without a threshold: confident steps of uniform-low). In failed rows the entropy is NaN and the rest means
    nothing. Policies that need no entropy hand one back rounded when given it (calibration keeps them).
    """

    temperature: Tensor
    failed: Tensor
    step: Tensor | None = None
    boundary: Tensor | None = None
    uncertain: Tensor | None = None
    _ticks: Tensor | None = None
    _step_mean: tuple[Tensor, Tensor] | Tensor | None = None
    _global_mean: tuple[Tensor, Tensor] | None = None
    _tau: tuple[Tensor, Tensor] | Tensor | float | None = None
    _tau_otherwise: float = field(default=math.nan)

    @property
    def entropy(self) -> Tensor | None:
        return None if self._ticks is None else from_ticks(self._ticks).masked_fill_(self.failed, math.nan)

    @property
    def step_entropy(self) -> Tensor | None:
        return None if self._step_mean is None else _mean(self._step_mean)

    @property
    def global_mean(self) -> Tensor | None:
        return None if self._global_mean is None else _mean(self._global_mean)

    @property
    def tau(self) -> Tensor | None:
        if self._tau is None:
            return None
        if isinstance(self._tau, float):
            return torch.full_like(self.temperature, self._tau, dtype=torch.float64)
        tau = _mean(self._tau)
        if self.uncertain is None:
            return tau
        return tau.masked_fill(self.uncertain.logical_not(), self._tau_otherwise)


def _mean(value: tuple[Tensor, Tensor] | Tensor) -> Tensor:
    """float64 nats of (sum in ticks, count), one rounding in all (a power of two scales exactly)."""
    if isinstance(value, Tensor):
        return value
    return from_ticks(value[0]) / value[1]


class StepPolicy:
    """A policy's state for ``slots`` requests at a time.

    ``table`` is needed by policies that know steps (``settings.needs_steps``); ``device`` holds the state:
    slots x (7 + window) int64.

    Raises:
        UsageError: settings out of range.
        ValueError: no table where one is needed, or no slots.
    """

    def __init__(
        self, settings: PolicySettings, table: BoundaryTable | None, slots: int, device: torch.device | str = "cpu"
    ) -> None:
        settings.validate()
        if slots < 1 or (settings.needs_steps and table is None):
            raise ValueError(f"policy {settings.name} needs slots >= 1 and, where it knows steps, a boundary table")
        self.settings = settings
        self.device = torch.device(device)
        self._estimator = settings.estimator if settings.needs_steps else None
        self._window = settings.window
        # H < tau_0 for a whole number H of ticks is H < ceil(tau_0 * 2^22); the product is exact in float64.
        self._tau_0_ticks = 0 if settings.tau_0 is None else math.ceil(settings.tau_0 * TICKS)
        self._has_window = self._estimator in ("hybrid", "window") or settings.name == "sliding-window"
        # Engines call from inference mode or not; the state must take in-place writes from both.
        with torch.inference_mode(False):
            self._state = torch.zeros((7, slots), device=self.device, dtype=torch.int64)
            self._state[_AUTOMATON] = 1
            self._fresh = self._state[:, :1].clone()
            width = self._window if self._has_window else 0
            self._ring = torch.zeros((slots, width), device=self.device, dtype=torch.int64)
            self._ema = torch.zeros(slots, device=self.device, dtype=torch.float64)
            self._low = torch.tensor(settings.t_low, device=self.device, dtype=torch.float32)
            self._high = torch.tensor(settings.t_high, device=self.device, dtype=torch.float32)
            fixed = 0.0 if settings.name == "greedy" else settings.temperature
            self._constant = torch.full((slots,), fixed, device=self.device, dtype=torch.float32)
            self._never = torch.zeros(slots, device=self.device, dtype=torch.bool)
            self._moves = _moves(table).to(self.device) if self._estimator and table is not None else None
        self._columns = 0 if table is None else table.n_tokens + 2

    def join(self, slots: Tensor) -> None:
        """Start new requests in ``slots`` (int64 [B]): whatever was there is forgotten."""
        slots = slots.to(self.device)
        self._state.index_copy_(1, slots, self._fresh.expand(-1, slots.shape[0]))
        self._ema.index_fill_(0, slots, 0.0)
        if self._has_window:
            self._ring.index_fill_(0, slots, 0)

    def step(self, slots: Tensor, entropy: Tensor | None, last_token: Tensor | None) -> StepOutput:
        """Temperatures of the next token of the requests in ``slots``, and their state moved on by this token.

        ``slots`` int64 [B], all different; ``entropy`` float64 [B] in nats, of the distribution about to be
        sampled (None will do for policies that need none); ``last_token`` int64 [B], the token sampled in the
        step before, -1 for a request's first. An id beyond the table counts as text without a line feed.
        A NaN entropy marks its row ``failed``, leaves that slot's state as it was and touches no other.
        """
        rows = slots.shape[0]
        if entropy is None and not self.settings.needs_entropy:
            return StepOutput(self._constant[:rows], self._never[:rows])
        if entropy is None or (last_token is None and self._moves is not None):
            raise ValueError(f"policy {self.settings.name} needs entropies and, where it knows steps, last tokens")
        good = entropy.abs() < _MAX_ENTROPY
        failed = good.logical_not()
        h = (entropy * TICKS).round_().masked_fill_(failed, 0.0).to(torch.int64)
        if not self.settings.needs_entropy:
            return StepOutput(self._constant[:rows], failed, _ticks=h)
        if self.settings.name == "fixed-threshold":
            temperature = torch.where(h < self._tau_0_ticks, self._low, self._high)
            return StepOutput(temperature, failed, _ticks=h, _tau=self.settings.tau_0)

        before = self._state.index_select(1, slots)
        sum_all, sum_step, sum_window, n_all, n_step, step, automaton = before.unbind(0)
        first = n_all == 0
        fires = None
        if self._moves is not None and last_token is not None:
            # One lookup: state (as an offset into the table) and token to 2 * next offset + fires.
            code = self._moves.index_select(0, automaton + last_token.clamp(max=self._columns - 2))
            fires, automaton = code & 1, code >> 1
            step = step + fires
            inside = 1 - fires
            sum_step, n_step = sum_step * inside, n_step * inside
        n_window, at, old = n_all, None, None
        if self._has_window:
            n_window = n_all.clamp(max=self._window)
            at = slots * self._window + n_all % self._window
            old = self._ring.view(-1).index_select(0, at)

        output = self._decide(slots, h, first, sum_all, n_all, sum_step, n_step, sum_window, n_window)
        output.failed = failed
        if fires is not None:
            output.step, output.boundary = step, fires.bool().logical_or_(first)

        if at is not None and old is not None:
            self._ring.view(-1).index_copy_(0, at, torch.where(good, h, old))
            sum_window = sum_window + h - old
        if self._estimator == "ema":
            ema = self._ema.index_select(0, slots)
            moved = torch.where(first, from_ticks(h), ema + (from_ticks(h) - ema) / self._window)
            self._ema.index_copy_(0, slots, torch.where(good, moved, ema))
        after = torch.stack((sum_all + h, sum_step + h, sum_window, n_all + 1, n_step + 1, step, automaton))
        self._state.index_copy_(1, slots, torch.where(good, after, before))
        return output

    def _decide(
        self, slots: Tensor, h: Tensor, first: Tensor, sum_all: Tensor, n_all: Tensor, sum_step: Tensor,
        n_step: Tensor, sum_window: Tensor, n_window: Tensor,
    ) -> StepOutput:  # fmt: skip
        """Temperature and its reasons, from the sums over the tokens before this one (all int64 [B])."""
        name = self.settings.name
        if self._estimator is None:  # sliding-window
            mean = _or_own(sum_window, n_window, first, h)
            return self._output(h * mean[1] < mean[0], h, _tau=mean)
        if self._estimator == "ema":
            return self._decide_ema(slots, h, first, sum_all, n_all)
        if self._estimator == "causal":
            mean = _or_own(sum_step, n_step, n_step == 0, h)
        elif self._estimator == "window":
            mean = _or_own(sum_window, n_window, first, h)
        else:
            early = n_step < self._window
            mean = (torch.where(early, sum_window, sum_step), torch.where(early, n_window, n_step))
            mean = _or_own(*mean, first, h)
        below = h * mean[1] < mean[0]
        if name == "step-relative":
            return self._output(below, h, _step_mean=mean, _tau=mean)
        total = _or_own(sum_all, n_all, first, h)
        uncertain = mean[0] * total[1] > total[0] * mean[1]
        return self._with_fallback(below, uncertain, h, mean, total)

    def _decide_ema(self, slots: Tensor, h: Tensor, first: Tensor, sum_all: Tensor, n_all: Tensor) -> StepOutput:
        own = from_ticks(h)
        mean = torch.where(first, own, self._ema.index_select(0, slots))
        if self.settings.name == "step-relative":
            return self._output(own < mean, h, _step_mean=mean, _tau=mean)
        total = _or_own(sum_all, n_all, first, h)
        return self._with_fallback(own < mean, mean > _mean(total), h, mean, total)

    def _with_fallback(
        self, below: Tensor, uncertain: Tensor, h: Tensor, mean: tuple[Tensor, Tensor] | Tensor,
        total: tuple[Tensor, Tensor],
    ) -> StepOutput:  # fmt: skip
        """Uncertain steps go by their own mean; confident ones by tau_0 (reset) or all at T_low (uniform-low)."""
        otherwise = math.nan
        if self.settings.name == "uniform-low":
            low = below.logical_or(uncertain.logical_not())
        else:
            low = torch.where(uncertain, below, h < self._tau_0_ticks)
            otherwise = float(self.settings.tau_0 or 0.0)
        return self._output(
            low, h, uncertain=uncertain, _step_mean=mean, _global_mean=total, _tau=mean, _tau_otherwise=otherwise
        )

    def _output(self, low: Tensor, h: Tensor, **reasons) -> StepOutput:
        return StepOutput(torch.where(low, self._low, self._high), low, _ticks=h, **reasons)


def _or_own(total: Tensor, count: Tensor, none: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """(sum, count), or this token's own entropy in rows where there is nothing before it (total and count are 0)."""
    return total + h * none, count + none


def _moves(table: BoundaryTable) -> Tensor:
    """The table as one int64 vector of 4 * (n_tokens + 2) codes: 2 * (offset of the next state) + fires.

    Per state: "no token" (index -1, moves nothing), every token, and any other id (text without a line feed). A
    state's offset points at its token 0.
    """
    states = torch.arange(4)[:, None]
    target = torch.cat((states, table.next_state.cpu().long(), torch.zeros_like(states)), dim=1)
    fires = torch.zeros_like(target)
    fires[:, 1:-1] = table.fires.cpu().long()
    return ((target * target.shape[1] + 1) * 2 + fires).flatten()
