"""Contestants of `train_step.py`: ours, and Hugging Face's PyTorch models, on the same random batch.

All train with AdamW and without a pooler, and with dropout only if the case has it. On a GPU both have float32
parameters and compute in bfloat16, torch by autocast; torch uses its fused attention if the mask is plain.
"""

import dataclasses
import functools
import importlib
import os
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from plm_jax import config, models
from plm_jax.config import files as pages


@dataclasses.dataclass(frozen=True)
class Case:
    """The model of a config, trained on batches of [rows, length] tokens.

    Attributes:
      config: config file and size.
      rows: batch size.
      length: row length.
      targets: number of target tokens per row.
      layers: number of layers of each stack; 0 for that of the config.
      device: `cpu` computes in float32, `gpu` in bfloat16.
      narrow: whether the model has 64 features and 512 tokens, to try a benchmark out.
      dropout: whether to use the config's dropout.
    """

    config: str
    rows: int
    length: int
    targets: int
    layers: int
    device: Literal["cpu", "gpu"]
    narrow: bool
    dropout: bool = False

    @property
    def family(self) -> str:
        """Name of the config file."""
        return self.config.partition(".py:")[0]

    @property
    def decoder_length(self) -> int:
        """Row length of an encoder-decoder's second stack."""
        return self.targets if isinstance(self.run.model, models.EncoderDecoderConfig) else 0

    @functools.cached_property
    def run(self) -> config.Run:
        """Run of the config; its model without dropout, recomputation and pooler."""
        run = config.from_dict(pages.load(os.path.join(pages.FOLDER, self.config)).config())
        fewer = dataclasses.replace(run.model.stack, layers=self.layers or run.model.stack.layers)
        changed = {"stack": fewer, "decoder_stack": fewer, "pooler": models.NoHead()}
        changed = {name: value for name, value in changed.items() if hasattr(run.model, name)}
        if not self.dropout:
            changed["dropout"] = run.model.dropout.all_at(0.0)
        model = dataclasses.replace(run.model, remat="none", **changed)
        if self.narrow:
            model = dataclasses.replace(
                model,
                embedding=dataclasses.replace(model.embedding, vocab_size=512, width=64),
                attention=dataclasses.replace(
                    model.attention, heads=2, head_dim=32, kv_heads=model.attention.kv_heads and 1
                ),
                feed_forward=dataclasses.replace(model.feed_forward, width=128),
            )
        return dataclasses.replace(run, model=model)

    def batch(self) -> dict[str, np.ndarray]:
        """Returns random tokens in the format of the run's objective."""
        rng = np.random.default_rng(0)

        def tokens(length):
            return rng.integers(0, self.run.model.embedding.vocab_size, (self.rows, length), dtype=np.int32)

        batch = {"tokens": tokens(self.length), "targets": tokens(self.targets)}
        batch["target_weights"] = np.ones((self.rows, self.targets), np.float32)
        if self.run.objective.kind == "masked_lm":
            positions = [np.sort(rng.choice(self.length, self.targets, replace=False)) for _ in range(self.rows)]
            batch["target_positions"] = np.stack(positions).astype(np.int32)
        if self.decoder_length:
            batch["decoder_tokens"] = tokens(self.targets)
        return batch


class Contestant(NamedTuple):
    """A model that is trained.

    Attributes:
      step: starts a training step, which may still run when it returns.
      wait: waits for all steps and returns the loss of the last one.
      facts: returns the device, number of parameters, and peak bytes of device memory (None on a CPU).
    """

    step: Callable[[], None]
    wait: Callable[[], float]
    facts: Callable[[], dict[str, Any]]


def make(name: str, case: Case) -> Contestant:
    """Returns the contestant: `plm_jax`, `plm_jax_scan`, `torch_default`, `torch_eager` or `torch_compile`."""
    if name.startswith("plm_jax"):
        return make_ours(case, scan_layers=name == "plm_jax_scan")
    return make_torch(case, name)


def make_ours(case: Case, scan_layers: bool) -> Contestant:
    """Returns ours on the first device, with its layers unrolled or scanned."""
    import jax

    from plm_jax.runs.programs import Programs
    from plm_jax.training import mesh

    run = dataclasses.replace(
        case.run,
        model=dataclasses.replace(case.run.model, scan_layers=scan_layers),
        optimizer=config.AdamWConfig(weight_decay=0.1, clip_norm=0.0),
        schedule=config.ConstantSchedule(1e-4),
        train=config.TrainConfig(steps=1, batch_size=case.rows),
        mesh=config.MeshConfig(),
        precision=config.PrecisionConfig("bfloat16" if case.device == "gpu" else "float32"),
    )
    device = jax.devices()[0]
    programs = Programs(run, [device])
    current, train_step = programs.first.new_state(run.train.seed), programs.first.phase_step(programs.phases[0])
    batch = case.batch() | {"digest": np.zeros((case.rows, 2), np.uint32)}
    batch = jax.device_put(batch, mesh.batch_sharding(programs.first.mesh))
    metrics = None

    def do():
        nonlocal current, metrics
        current, metrics = train_step(current, batch, *programs.inputs(0))

    def facts():
        return {
            "device": device.device_kind,
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(current.params)),
            "peak_memory_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
        }

    return Contestant(do, lambda: float(metrics["loss"]), facts)


def make_torch(case: Case, name: str) -> Contestant:
    """Returns Hugging Face's model: `torch_default` unchanged, `torch_eager` tuned, `torch_compile` also compiled."""
    import torch

    device = torch.device("cuda" if case.device == "gpu" and torch.cuda.is_available() else "cpu")
    if case.device == "gpu":
        torch.set_float32_matmul_precision("high")
    model, loss = torch_model(case, gathers=name != "torch_default")
    model = model.to(device).train()
    batch = {key: torch.from_numpy(value).long().to(device) for key, value in case.batch().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=name != "torch_default")
    if name == "torch_compile":
        loss = torch.compile(loss)
    value = None

    def do():
        nonlocal value
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=case.device == "gpu"):
            value = loss(batch)
        value.backward()
        optimizer.step()

    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize()
        return value.item()

    def facts():
        cuda = device.type == "cuda"
        return {
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if cuda else None,
            "attention": model.config._attn_implementation,
        }

    return Contestant(do, wait, facts)


def torch_model(case: Case, gathers: bool):
    """Returns Hugging Face's model with the case's settings, and its loss as a function of the batch.

    Args:
      case: settings.
      gathers: whether a masked LM's head reads the masked positions only.
    """
    import torch
    import transformers

    from plm_jax.hub.family import Family

    model = case.run.model
    importlib.import_module(f"plm_jax.hub.{case.family}")  # Not all families: they need more packages.
    settings = Family.choices[case.family]().to_config(model) | {"use_cache": False}
    settings |= {name: settings.get(name) for name in ("bos_token_id", "eos_token_id")} if case.family == "gpt2" else {}
    settings.pop("model_type", None)
    if settings.get("hidden_act") == "gelu_new":  # The same function by one kernel.
        settings["hidden_act"] = "gelu_pytorch_tanh"
    config = transformers.AutoConfig.for_model(case.family, **settings)
    auto = {"encoder": "MaskedLM", "decoder": "CausalLM", "encoder_decoder": "Seq2SeqLM"}[model.kind]
    peer = getattr(transformers, f"AutoModelFor{auto}").from_config(config)
    if case.family == "t5" and not model.head.tied:  # transformers 5 ties it all the same.
        peer.lm_head = torch.nn.Linear(model.embedding.width, model.embedding.vocab_size, bias=False)
    if case.device == "gpu" and not peer.config.is_encoder_decoder:
        _skip_masks(peer)
    if auto == "MaskedLM":
        head = peer.predictions if case.family == "albert" else peer.cls
        return peer, masked_lm_loss(peer, peer.base_model, head, gathers)

    def loss(batch):
        decoder = {"decoder_input_ids": batch["decoder_tokens"]} if case.decoder_length else {}
        labels = batch["targets"] if case.decoder_length else batch["tokens"]
        return peer(input_ids=batch["tokens"], **decoder, labels=labels).loss

    return peer, loss


def _skip_masks(peer) -> None:
    """Makes a model without padding attend by `is_causal` alone, because torch has a slower kernel for masks.

    Under torch.compile transformers makes a mask if torch is older than 2.14 (masking_utils.py).
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("sdpa_without_mask", sdpa_attention_forward)
    peer.set_attn_implementation("sdpa_without_mask")


def masked_lm_loss(peer, features_of, head, gathers: bool):
    """Returns the loss of a masked LM as a function of the batch."""
    import torch

    def dense(batch):
        labels = torch.full_like(batch["tokens"], -100).scatter(1, batch["target_positions"], batch["targets"])
        return peer(input_ids=batch["tokens"], labels=labels).loss

    def gathered(batch):
        features = features_of(input_ids=batch["tokens"]).last_hidden_state
        at = batch["target_positions"][..., None].expand(-1, -1, features.shape[-1])
        logits = head(features.gather(1, at))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())

    return gathered if gathers else dense
