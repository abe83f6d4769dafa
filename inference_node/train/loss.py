"""What is minimised at each slot, and how much each slot counts.

All weightings are normalised to the same mean weight (sum of weighted losses / sum of weights), so that an arm's
weighting does not change its learning rate behind its back.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from inference_node.train.arm import Arm


def slot_loss(
    kind: str, logits: torch.Tensor, label: torch.Tensor, teacher: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, CE on the label), both [slots] fp32. logits and teacher [slots, ids]; label [slots], -1 where not an id.

    data: CE on the token of the text. teacher: CE on the target's own best token. kl: KL(target || drafter). A label
    outside the drafter's vocabulary (-1) has no CE: the caller leaves its slot out.
    """
    log_q = F.log_softmax(logits.to(torch.float32), dim=-1)
    known = label.clamp(min=0)
    ce = -log_q.gather(-1, known[:, None])[:, 0]
    if kind == "data":
        return ce, ce
    if teacher is None:
        raise ValueError(f'loss "{kind}" needs the target\'s logits')
    if kind == "teacher":
        return -log_q.gather(-1, teacher.argmax(-1, keepdim=True))[:, 0], ce
    log_p = F.log_softmax(teacher.to(torch.float32), dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1), ce


def slot_weight(
    arm: Arm, wanted: torch.Tensor, masked: torch.Tensor, ce: torch.Tensor, sayable: torch.Tensor | None = None
) -> torch.Tensor:
    """[N, B] fp32, no gradient; zero where a slot is not wanted, and where the drafter has no id for it.

    sayable [N, B]: slots whose label is in the drafter's vocabulary. The others keep their place in a block: what comes
    behind one of them is reached only as often as smoothing says.

    exp: exp(-(k - 1) / lambda) for the k-th masked slot. dpace: the expected number of further accepted tokens that
    hang on the slot, from the drafter's own probability of each label, smoothed (arXiv 2605.18810).
    """
    sayable = torch.ones_like(wanted) if sayable is None else sayable
    counts = wanted & sayable
    if arm.weighting == "none":
        return counts.to(torch.float32)
    if arm.weighting == "exp":
        order = (masked & wanted).to(torch.float32).cumsum(-1)  # 1 at the first slot that is wanted
        return torch.exp(-(order - 1) / arm.slots_to_e) * counts
    with torch.no_grad():
        sure = (1 - arm.smoothing) * torch.exp(-ce) * sayable + arm.smoothing
        reach = torch.where(wanted, sure, torch.ones_like(sure)).cumprod(-1) * wanted
        return reach.flip(-1).cumsum(-1).flip(-1) * counts


def weighted_mean(loss: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Sum of weighted losses over the sum of weights; 0 where nothing counts."""
    return (loss * weight).sum() / weight.sum().clamp(min=1e-9)
