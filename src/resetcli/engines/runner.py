"""One loaded model and its forward passes: prefill of one request, decode of all running ones, diagnosis.

The transformers module runs unchanged (see `attention`); this file decides shapes. On a CPU, linear layers are
packed and a decode step holds exactly the running requests (at least two rows). On a GPU, a decode step always
holds every slot, so that it can be captured in a CUDA graph once per cache capacity: an eager step is bound by
launches, not by bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from resetcli.base.errors import ResetError
from resetcli.base.reporting import Reporter
from resetcli.engines import packing
from resetcli.engines.attention import NAME, Step, attending
from resetcli.engines.kv import KVShape, RaggedKV, Row, SlotKV

PREFILL_CHUNK = 2048
TEACHER_CHUNK = 256


class ModelRunner:
    """Forward passes of ``model`` for up to ``slots`` requests at once.

    Args:
        model: a transformers causal language model, weights loaded.
        valid_vocab: logits from this id on are vocabulary padding and are cut off.
        packed: pack the CPU linear layers (see `packing`).
        invariant: make a request's logits independent of its company (CPU, float32, packed).

    Raises:
        ResetError: the model does not use transformers' attention interface.
    """

    def __init__(self, model: Any, *, slots: int, valid_vocab: int, packed: bool, invariant: bool, reporter: Reporter):
        self.model = model
        self.slots = slots
        self.valid_vocab = valid_vocab
        self.reporter = reporter
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        config = model.config.get_text_config()
        self.layers = config.num_hidden_layers
        heads = getattr(config, "num_attention_heads", None)
        if heads is None:
            raise self._refusal(0)
        shape = KVShape(
            layers=self.layers,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=self.dtype,
            device=self.device,
        )
        model.eval()
        model.set_attn_implementation(NAME)
        self.kv: RaggedKV | SlotKV = SlotKV(shape, slots) if self.device.type == "cuda" else RaggedKV(shape, slots)
        self._scratch = RaggedKV(shape, 1)
        self.rows_per_pass = slots
        if packed:
            weights = packing.pack_model(model)
            packing.fuse_norms(model)
        # Products that are not packed choose kernels by row count: only a fixed row count keeps the bits.
        if invariant and not (packed and packing.settle_rows(weights, slots)):
            reporter.info("this machine's matrix products depend on the batch; requests are decoded one by one")
            self.rows_per_pass = 1
        self._graph: _Graph | None = None
        self._graphs_work = self.device.type == "cuda"
        self._probe()

    def row(self, slot: int) -> Row:
        """An empty cache row in ``slot``."""
        return Row(self.kv, slot)

    @torch.inference_mode()
    def prefill(self, row: Row, ids: Sequence[int], *, keep: int = 1) -> torch.Tensor:
        """Run ``ids`` [T] through one row and advance it; logits float32 [keep, valid_vocab] of the last ``keep`` ids.

        ``keep`` > 1 needs the ids to fit one chunk.
        """
        row.reserve(row.length + len(ids))
        logits = None
        for at in range(0, len(ids), PREFILL_CHUNK):
            chunk = torch.tensor([ids[at : at + PREFILL_CHUNK]], device=self.device)
            positions = torch.arange(row.length, row.length + chunk.shape[1], device=self.device)[None]
            with attending(Step(rows=[row])) as step:
                logits = self._forward(chunk, positions, keep)
            self._check_layers(step)
            row.length += chunk.shape[1]
        assert logits is not None, "an empty prompt is refused earlier"
        return logits[0]

    @torch.inference_mode()
    def decode(self, rows: Sequence[Row], tokens: Sequence[int]) -> torch.Tensor:
        """One token for each row; advances them. Logits float32 [len(rows), valid_vocab].

        On a GPU, [slots, valid_vocab] instead: row i of the result belongs to slot i.
        """
        for row in rows:
            row.reserve(row.length + 1)
        if isinstance(self.kv, SlotKV):
            logits = self._decode_static(self.kv, rows, tokens)
        else:
            size = self.rows_per_pass
            passes = [(rows[at : at + size], tokens[at : at + size]) for at in range(0, len(rows), size)]
            parts = [self._decode_ragged(*each) for each in passes]
            logits = parts[0] if len(parts) == 1 else torch.cat(parts)
        for row in rows:
            row.length += 1
        return logits

    def _decode_ragged(self, rows: Sequence[Row], tokens: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor(tokens)[:, None]
        positions = torch.tensor([row.length for row in rows])[:, None]
        with attending(Step(rows=rows)):
            return self._forward(ids, positions, 1)[:, 0]

    def _decode_static(self, kv: SlotKV, rows: Sequence[Row], tokens: Sequence[int]) -> torch.Tensor:
        ids, positions = [0] * self.slots, [0] * self.slots
        for row, token in zip(rows, tokens, strict=True):
            ids[row.slot], positions[row.slot] = token, row.length
        staged = torch.tensor([ids, positions]).pin_memory().to(self.device, non_blocking=True)
        if self._graphs_work:
            if self._graph is None or self._graph.generation != kv.generation:
                self._graph = None
                try:
                    self._graph = _Graph(self, kv)
                except RuntimeError as exc:
                    self._graphs_work = False
                    self.reporter.warn(
                        f"decoding without CUDA graphs, several times slower: {str(exc).splitlines()[0]}"
                    )
            if self._graph is not None:
                return self._graph(staged)
        return self.forward_static(kv, staged)

    def forward_static(self, kv: SlotKV, staged: torch.Tensor) -> torch.Tensor:
        """One decode step over all slots; ``staged`` int64 [2, slots] holds token ids and positions."""
        with attending(Step(slot_kv=kv, positions=staged[1])):
            return self._forward(staged[0][:, None], staged[1][:, None], 1)[:, 0]

    def scratch_row(self) -> Row:
        """A row outside the slots, for scoring and diagnosis; release it after use."""
        return Row(self._scratch, 0)

    @torch.inference_mode()
    def first_bad_layer(self, ids: Sequence[int]) -> str | None:
        """Name of the first module whose output is not finite when ``ids`` run afresh, else None."""
        found: list[str] = []

        def watch(name: str):
            def hook(_module, _inputs, output) -> None:
                tensor = output[0] if isinstance(output, tuple) else output
                if not found and isinstance(tensor, torch.Tensor) and not bool(tensor.isfinite().all()):
                    found.append(name)

            return hook

        hooks = [
            m.register_forward_hook(watch(n)) for n, m in self.model.named_modules() if n and not any(m.children())
        ]
        row = self.scratch_row()
        try:
            self.prefill(row, ids)
        finally:
            row.release()
            for hook in hooks:
                hook.remove()
        return found[0] if found else None

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, keep: int) -> torch.Tensor:
        out = self.model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=keep)
        return out.logits[..., : self.valid_vocab].float()

    def _check_layers(self, step: Step) -> None:
        if len(step.layers_seen) != self.layers:
            raise self._refusal(len(step.layers_seen))

    def _refusal(self, seen: int) -> ResetError:
        return ResetError(
            f"model type '{self.model.config.model_type}' keeps state outside transformers' attention interface "
            f"({seen} of {self.layers} layers use it); the transformers engine cannot serve it"
        )

    def _probe(self) -> None:
        """Fail now rather than after the first prompt if the model is not one that this engine can serve."""
        row = self.scratch_row()
        try:
            self.prefill(row, [0])
        finally:
            row.release()


class _Graph:
    """A captured decode step over all slots, valid while the cache does not move."""

    def __init__(self, runner: ModelRunner, kv: SlotKV):
        self.generation = kv.generation
        self.staged = torch.zeros(2, runner.slots, dtype=torch.int64, device=runner.device)
        # Position 0 of every slot is overwritten by warm-up and capture; keep what running requests have there.
        saved = kv.keys[:, :, :, :1].clone(), kv.values[:, :, :, :1].clone()
        side = torch.cuda.Stream(runner.device)
        side.wait_stream(torch.cuda.current_stream(runner.device))
        with torch.cuda.stream(side):
            for _ in range(2):
                runner.forward_static(kv, self.staged)
        torch.cuda.current_stream(runner.device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = runner.forward_static(kv, self.staged)
        kv.keys[:, :, :, :1], kv.values[:, :, :, :1] = saved

    def __call__(self, staged: torch.Tensor) -> torch.Tensor:
        self.staged.copy_(staged)
        self.graph.replay()
        return self.logits
