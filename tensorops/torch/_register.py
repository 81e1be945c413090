"""Our attention among the implementations of transformers."""

from __future__ import annotations


def register_attention(name: str = "tensorops") -> None:
    """Add our attention to those that models of transformers can be told to use.

    It computes what transformers' own implementation ``"sdpa"`` does, with the same masks: where that is faster, by
    `tensorops.scaled_dot_product_attention`, and by that implementation elsewhere. Attention with sinks, which that
    ignores, is a `ValueError`.

    Parameters
    ----------
    name : str, optional
        For the argument `attn_implementation` of `from_pretrained`, or `set_attn_implementation` of a model.

    Raises
    ------
    ImportError
        If transformers is not installed, or has no such registry, before 4.53.

    Examples
    --------
    >>> import transformers
    >>> from tensorops.torch import register_attention
    >>> register_attention()
    >>> "tensorops" in transformers.AttentionInterface()
    True
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    from tensorops.torch._attention import attention_interface

    AttentionInterface.register(name, attention_interface(sdpa_attention_forward))
    AttentionMaskInterface.register(name, sdpa_mask)
