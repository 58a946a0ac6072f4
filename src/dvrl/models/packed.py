"""The parameters of a `VRNN`, arranged so that one product does many: what recorders act and derive
with (models.replay, models.normed, encoders.weigh)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dvrl.models.vrnn import VRNN
from dvrl.models.walk import MoveWeights
from dvrl.nets.layers import Affine, new_gate_first
from dvrl.nets.sight import VectorDecoder


def movers(model: VRNN) -> tuple[nn.Module, ...]:
    """What moves particles, the embeddings of observation and action apart."""
    norm = () if model.proposal_norm is None else (model.proposal_norm,)
    return model.embed_latent, model._proposal, *norm, model._proposal_head, model._transition


def laws(model: VRNN) -> tuple[nn.Module, ...]:
    """All but the embeddings of observation and action."""
    return (
        model.embed_latent, model._proposal, model._proposal_head, model._prior, model._prior_head,
        model._decoder, model._transition,
    )  # fmt: skip


def move_weights(model: VRNN) -> MoveWeights:
    """What moves particles - phi^z, proposal and transition - packed for `models.replay`."""
    q, head, cell = model._proposal, model._proposal_head, model._transition
    embed, embed_bias = model.embed_latent.parameters()
    w_own, w_context = cell.weight_ih.split(cell.split, 1)
    q_own, q_context = q.weight.split(q.split, 1)
    head_weight, head_bias = head.packed()
    return MoveWeights(
        context=torch.cat([new_gate_first(w_context), q_context]),
        context_bias=torch.cat([new_gate_first(cell.bias_ih), torch.zeros_like(q.bias)]),
        state=torch.cat([cell.weight_hh, q_own]),
        state_bias=torch.cat([cell.bias_hh, q.bias]),
        head=head_weight,
        head_bias=head_bias,
        embed=embed,
        embed_bias=embed_bias,
        gates=new_gate_first(w_own),
    )


def weighing_contexts(model: VRNN) -> tuple[Affine, Affine]:
    """The layers by which a speaks to prior and decoder."""
    prior, decoder = model._prior, _vector_decoder(model).first
    return (
        Affine(prior.weight[:, prior.split[0] :], prior.bias),
        Affine(decoder.weight[:, decoder.split[0] :], decoder.bias),
    )


def contexts(model: VRNN, w: MoveWeights) -> tuple[Tensor, Tensor]:
    """What [x, a] says to moves, prior and decoder as one layer; the latter two see only a."""
    weights, biases = zip(*weighing_contexts(model), strict=True)
    blind = w.context.shape[1] - weights[0].shape[1]
    alone = [F.pad(weight, (blind, 0)) for weight in weights]
    return torch.cat([w.context, *alone]), torch.cat([w.context_bias, *biases])


def weighing(model: VRNN) -> dict[str, Tensor]:
    """Prior and decoder apart from their contexts, by the names of `WeighWeights`."""
    of = _vector_decoder(model)
    prior, decoder = (m.weight[:, : m.split[0]] for m in (model._prior, of.first))
    prior_head, prior_head_bias = model._prior_head.packed()
    dec_head, dec_head_bias = of.head.packed()
    e_dim = model._transition.split[0]
    return {
        "prior": prior,
        "prior_head": prior_head,
        "prior_head_bias": prior_head_bias,
        "dec_e": decoder[:, :e_dim],
        "dec_h": decoder[:, e_dim:],
        "dec_hidden": of.hidden.weight,
        "dec_hidden_bias": of.hidden.bias,
        "dec_head": dec_head,
        "dec_head_bias": dec_head_bias,
    }


def plain(model: VRNN) -> bool:
    """Whether it decodes vectors and normalises nothing: the short way there is worked out."""
    return isinstance(model._decoder, VectorDecoder) and model.proposal_norm is None


def sizes(model: VRNN) -> tuple[int, ...]:
    """Of h, the proposal's hidden layer, phi^z, z, hidden layers of prior and decoder, o."""
    h, z = model._prior.split[0], model._prior_head.mean.out_features
    decoder = _vector_decoder(model)
    return h, h, h, z, h, decoder.hidden.in_features, decoder.head.mean.out_features


def _vector_decoder(model: VRNN) -> VectorDecoder:
    assert isinstance(model._decoder, VectorDecoder), "it decodes images"
    return model._decoder
