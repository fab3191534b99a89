"""DelTA's ablations, scopes and selections against plain float64 loops written from the paper's rows, and limits."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights import discriminant
from rlvr.methods.token_weights.delta import DelTA, LambdaSelection, MatchedLambdaSelection, WithinSide
from rlvr.methods.token_weights.discriminant import hidden_gradients, token_vectors
from rlvr.methods.token_weights.token_rules import RandomLambda
from tests.unit.methods.conftest import drawn_lengths, rollout_batch

B, T, D, V = 8, 6, 5, 11
Vector = list[float]


def draw_batch(seed: int, signs: str = "mixed", scale: float = 1.0) -> RolloutBatch:
    """A float64 batch of 8 rollouts, two groups, with lengths 0 .. 6; padding holds NaN."""
    generator = torch.Generator().manual_seed(seed)
    lengths = drawn_lengths(B, T, generator)
    advantages = torch.randn(B, generator=generator, dtype=torch.float64)
    if signs == "mixed":
        advantages[1:7] = torch.tensor([0.4, 1.3, -0.7, 0.0, -0.4, 0.9], dtype=torch.float64)
    else:
        advantages = {"positive": advantages.abs(), "negative": -advantages.abs(), "zero": advantages * 0}[signs]
    return rollout_batch(
        lengths,
        generator,
        advantages=advantages,
        mini_batch_ids=torch.arange(B) % 2,
        token_ids=torch.randint(0, V, (B, T), generator=generator),
        temperature=0.7,
        head_weight=torch.randn(V, D, generator=generator, dtype=torch.float64),
        hidden_states=scale * torch.randn(sum(lengths), D, generator=generator, dtype=torch.float64),
    )


def tokens_of(batch: RolloutBatch) -> list[tuple[int, int]]:
    """Real tokens, row-major."""
    return [(i, t) for i in range(B) for t in range(T) if batch.response_mask[i, t]]


def hidden_gradient(batch: RolloutBatch, n: int, token: int, top_k: int) -> Vector:
    """(W[y] - sum over the top k of renormalised p_j W[j]) / temperature."""
    assert batch.hidden_states is not None and batch.head_weight is not None
    hidden, head = batch.hidden_states[n].tolist(), batch.head_weight.tolist()
    logits = [math.fsum(a * b for a, b in zip(hidden, row, strict=True)) / batch.temperature for row in head]
    top = sorted(range(V), key=lambda j: -logits[j])[:top_k]
    total = math.fsum(math.exp(logits[j]) for j in top)
    return [
        (head[token][d] - math.fsum(math.exp(logits[j]) / total * head[j][d] for j in top)) / batch.temperature
        for d in range(D)
    ]


def vectors_of(batch: RolloutBatch, proxy: str, top_k: int) -> list[Vector]:
    """One vector per token."""
    assert batch.hidden_states is not None
    if proxy == "top_k_hidden_gradient":
        return [hidden_gradient(batch, n, int(batch.token_ids[x]), top_k) for n, x in enumerate(tokens_of(batch))]
    return [
        [(1 - math.exp(float(batch.old_log_probs[x]))) * h for h in batch.hidden_states[n].tolist()]
        for n, x in enumerate(tokens_of(batch))
    ]


def distance(a: Vector, b: Vector) -> float:
    """Squared."""
    return math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def sigmoid(x: float) -> float:
    """Without overflow."""
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def centroid(vectors: list[Vector], weights: list[float]) -> Vector:
    """Weighted mean."""
    total = math.fsum(weights)
    return [math.fsum(w * v[d] for w, v in zip(weights, vectors, strict=True)) / total for d in range(D)]


def deviation(values: list[float]) -> float:
    """Of the population, with the floor."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(max(math.fsum((v - mean) ** 2 for v in values) / len(values), 1e-8))


def delta_part(component: DelTA, vectors: list[Vector], advantages: list[float], frozen: Any) -> list[float]:
    """Weights of one scope's tokens."""
    sides = {s: [n for n, a in enumerate(advantages) if a * s > 0] for s in (1, -1)}
    if not sides[1] or not sides[-1]:
        return [1.0] * len(vectors)
    side_of = {n: s for s, members in sides.items() for n in members}

    def centroids(soft: dict[int, float], before: Any) -> dict[int, Vector]:
        found = {}
        for s, members in sides.items():
            weights = [abs(advantages[n]) * soft[n] for n in members]
            found[s] = centroid([vectors[n] for n in members], weights) if math.fsum(weights) > 0 else before[s]
        return found

    def margins(mu: dict[int, Vector]) -> dict[int, float]:
        return {n: distance(vectors[n], mu[-s]) - distance(vectors[n], mu[s]) for n, s in side_of.items()}

    def soft_of(margin: dict[int, float], scale: dict[int, float]) -> dict[int, float]:
        if component.assignment == "hard":
            return {n: float(m > 0) for n, m in margin.items()}
        return {n: sigmoid(m / scale[side_of[n]]) for n, m in margin.items()}

    mu = centroids(dict.fromkeys(side_of, 1.0), None)
    margin = margins(mu)
    scale = {s: deviation([margin[n] for n in members]) for s, members in sides.items()}
    if component.scale == "one":
        scale = {1: 1.0, -1: 1.0}
    if component.scale == "mean_distance":
        scale = {s: math.fsum(distance(vectors[n], mu[s]) for n in m) / len(m) for s, m in sides.items()}
    if component.scale == "first_batch" and frozen:
        scale = frozen
    for _ in range(component.refinements):
        soft = soft_of(margin, scale)
        mu = centroids(soft, mu)
        if component.scale == "margin_deviation":
            scale = {s: deviation([margin[n] for n in members]) for s, members in sides.items()}
        margin = margins(mu)
    soft = soft_of(margin, scale)
    return weights_from(component, soft, len(vectors))


def weights_from(component: Any, soft: dict[int, float], count: int) -> list[float]:
    """Range map and normaliser."""
    if getattr(component, "range_map", True):
        span = component.lambda_max - component.lambda_min
        lambdas = [component.lambda_min + span * soft.get(n, 0.0) for n in range(count)]
        total, tokens = math.fsum(lambdas), count
    else:
        lambdas = [soft.get(n, 0.0) for n in range(count)]
        total, tokens = math.fsum(lambdas), len(soft)
    return [x * tokens / total for x in lambdas] if getattr(component, "normalised", True) else lambdas


def delta_oracle(component: DelTA, batch: RolloutBatch, frozen: Any = None) -> list[float]:
    """Weights of the real tokens."""
    tokens, vectors = tokens_of(batch), vectors_of(batch, component.proxy, component.top_k)
    home = {
        "global": lambda i: 0,
        "group": lambda i: int(batch.group_ids[i]),
        "rank": lambda i: i * component.ranks // B,
    }[component.scope]
    weights = [0.0] * len(tokens)
    for scope in {home(i) for i, _ in tokens}:
        members = [n for n, (i, _) in enumerate(tokens) if home(i) == scope]
        advantages = [float(batch.advantages[tokens[n][0]]) for n in members]
        part = delta_part(component, [vectors[n] for n in members], advantages, frozen)
        for n, weight in zip(members, part, strict=True):
            weights[n] = weight
    return weights


def within_side_oracle(component: WithinSide, batch: RolloutBatch) -> list[float]:
    """Weights of the real tokens."""
    vectors = vectors_of(batch, "sampled_token_row", 1)
    advantages = [float(batch.advantages[i]) for i, _ in tokens_of(batch)]
    soft: dict[int, float] = {}
    for s in (1, -1):
        members = [n for n, a in enumerate(advantages) if a * s > 0]
        if not members:
            continue
        own = [vectors[n] for n in members]

        def centre(alpha: list[float], before: Vector, own: list[Vector] = own, members: list[int] = members) -> Vector:
            weights = [abs(advantages[n]) * a for n, a in zip(members, alpha, strict=True)]
            if math.fsum(weights) == 0:
                return before
            found = centroid(own, weights)
            for _ in range(20 if component.centre == "geometric_median" else 0):
                near = [w / math.sqrt(max(distance(v, found), 1e-12)) for w, v in zip(weights, own, strict=True)]
                found = centroid(own, near)
            return found

        mu = centre([1.0] * len(members), [])
        distances = [distance(v, mu) for v in own]
        scale = deviation(distances)
        for _ in range(component.refinements):
            alpha = [sigmoid(-d / scale) for d in distances]
            mu = centre(alpha, mu)
            scale = deviation(distances)
            distances = [distance(v, mu) for v in own]
        soft |= {n: sigmoid(-d / scale) for n, d in zip(members, distances, strict=True)}
    return weights_from(component, soft, len(vectors)) if soft else [1.0] * len(vectors)


ABLATIONS = [
    DelTA(),
    DelTA(scale="one"),
    DelTA(scale="mean_distance"),
    DelTA(scale="first_batch"),
    DelTA(assignment="hard"),
    DelTA(normalised=False),
    DelTA(range_map=False),
    DelTA(refinements=0),
    DelTA(proxy="top_k_hidden_gradient", top_k=4),
    DelTA(proxy="top_k_hidden_gradient"),
    DelTA(lambda_min=0.5),
    DelTA(lambda_min=0.5, lambda_max=1.5),
    DelTA(refinements=2),
    DelTA(refinements=3),
    DelTA(scope="group"),
    DelTA(scope="rank", ranks=3),
]


@pytest.mark.parametrize("component", ABLATIONS, ids=repr)
@pytest.mark.parametrize("signs", ["mixed", "positive", "negative", "zero"])
def test_weights_equal_the_reference(component: DelTA, signs: str) -> None:
    for seed in range(4):
        batch = draw_batch(seed, signs)
        weights, _ = component(batch)
        expected = torch.tensor(delta_oracle(component, batch), dtype=torch.float64)
        torch.testing.assert_close(weights[batch.response_mask], expected, rtol=1e-9, atol=1e-9)
        assert not weights[~batch.response_mask].any()


@pytest.mark.parametrize("refinements", [0, 1, 2, 3])
@pytest.mark.parametrize("scale", [1e-4, 30.0])
def test_small_and_large_vectors_have_the_weights_of_the_reference(refinements: int, scale: float) -> None:
    component = DelTA(refinements=refinements, lambda_min=0.5, lambda_max=1.5)
    for seed in range(3):
        batch = draw_batch(seed, scale=scale)
        expected = torch.tensor(delta_oracle(component, batch), dtype=torch.float64)
        torch.testing.assert_close(component(batch)[0][batch.response_mask], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("top_k", [4, 20])
@pytest.mark.parametrize("logits_at_a_time", [1, 3 * V, 1 << 25])
def test_hidden_gradients(top_k: int, logits_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discriminant, "_LOGITS_AT_A_TIME", logits_at_a_time)
    batch = draw_batch(5)
    expected = torch.tensor(vectors_of(batch, "top_k_hidden_gradient", top_k), dtype=torch.float64)
    found = hidden_gradients(batch, top_k)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    low = hidden_gradients(replace(batch, hidden_states=batch.hidden_states.bfloat16()), top_k)
    assert low.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="head weight"):
        hidden_gradients(replace(batch, head_weight=None), top_k)


@pytest.mark.parametrize("centre", ["mean", "geometric_median"])
@pytest.mark.parametrize("refinements", [0, 1, 2])
@pytest.mark.parametrize("signs", ["mixed", "positive", "zero"])
def test_within_side_weights_equal_the_reference(centre: Any, refinements: int, signs: str) -> None:
    component = WithinSide(centre=centre, refinements=refinements)
    for seed in range(3):
        batch = draw_batch(seed, signs)
        weights, _ = component(batch)
        expected = torch.tensor(within_side_oracle(component, batch), dtype=torch.float64)
        # A squared distance near 0 is a difference of larger numbers, and Weiszfeld divides by its root.
        torch.testing.assert_close(weights[batch.response_mask], expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("component", [*ABLATIONS, WithinSide(), WithinSide(centre="geometric_median")], ids=repr)
def test_low_precision_hidden_states_change_little(component: Any, dtype: torch.dtype) -> None:
    """The weights are those of the rounded hidden states to float32's accuracy; hard assignments may flip at 0."""
    batch = draw_batch(11)
    assert batch.hidden_states is not None
    rounded = batch.hidden_states.to(dtype)
    weights, _ = component(replace(batch, hidden_states=rounded))
    expected, _ = component(replace(batch, hidden_states=rounded.double()))
    # The hidden gradient is itself kept in the type of the hidden states.
    bound = 3e-2 if getattr(component, "proxy", "") == "top_k_hidden_gradient" and dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(weights, expected, rtol=bound, atol=bound)


def of_vectors(rewarded: list[Vector], punished: list[Vector]) -> RolloutBatch:
    """One rollout a side with advantage 1 or -1, whose tokens have these vectors: p is one half, h twice the vector."""
    sides = [side for side in (rewarded, punished) if side]
    rows = torch.tensor([vector for side in sides for vector in side], dtype=torch.float64)
    batch = rollout_batch([len(side) for side in sides], torch.Generator(), hidden_states=2 * rows)
    advantages = torch.tensor([1.0] * bool(rewarded) + [-1.0] * bool(punished), dtype=torch.float64)
    halves = torch.full(batch.response_mask.shape, math.log(0.5), dtype=torch.float64)
    return replace(batch, advantages=advantages, old_log_probs=halves)


def test_vectors_that_are_all_alike_have_the_weight_of_their_distance() -> None:
    """Distance 0 to the own centroid: the scale is its floor, so that 0 / 0 is no weight.

    All vectors equal: margins 0, all weights 1. The sides 1 apart: margins 1, so that every weight is lambda_max's.
    """
    for punished in ([1.0, 0.0], [0.0, 0.0]):
        weights, metrics = DelTA(scale="mean_distance")(of_vectors([[1.0, 0.0]] * 2, [punished] * 2))
        torch.testing.assert_close(weights, torch.ones(2, 2, dtype=torch.float64))
        assert metrics["margin_scale_positive"] == metrics["margin_scale_negative"] == 1e-8


def test_hard_assignments_without_a_positive_margin_weigh_all_tokens_alike() -> None:
    """All margins are 0, so all lambdas are 0 and their mean normalises nothing."""
    batch = of_vectors([[1.0, 0.0]] * 2, [[1.0, 0.0]] * 2)
    for component in (DelTA(assignment="hard", range_map=False), DelTA(assignment="hard", lambda_min=0.0)):
        assert component(batch)[0].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    plain = DelTA(assignment="hard", range_map=False, normalised=False)
    assert not plain(batch)[0].any()  # without the mean, lambda itself


@pytest.mark.parametrize("centre", ["mean", "geometric_median"])
def test_a_side_whose_assignments_all_underflow_keeps_its_centre(centre: Any) -> None:
    """Tokens 1 and 3 are 1 away from their mean 2, 10,000 times the scale's floor: every assignment is 0.

    Around the mean both tokens are alike for ever. Around the origin their distances would be 1 and 9.
    """
    component = WithinSide(centre=centre, refinements=2)
    weights, metrics = component(of_vectors([[1.0, 0.0], [3.0, 0.0]], []))
    torch.testing.assert_close(weights, torch.ones(1, 2, dtype=torch.float64), rtol=0, atol=1e-12)
    assert metrics["margin_scale_negative"] == pytest.approx(1e-4)  # a side without tokens has the floor
    # Beside a side of one place, whose assignments are one half: lambdas 0.8, 0.8, 1, 1.
    weights, _ = component(of_vectors([[1.0, 0.0], [3.0, 0.0]], [[7.0, 0.0], [7.0, 0.0]]))
    torch.testing.assert_close(weights, torch.tensor([[8 / 9] * 2, [10 / 9] * 2], dtype=torch.float64))


def test_a_side_whose_weights_all_underflow_keeps_its_shares() -> None:
    """The smallest normal number is still a weight; half of it is none."""
    vectors = token_vectors(of_vectors([[1.0, 0.0], [3.0, 0.0]], [[2.0, 0.0]]), "sampled_token_row", 1)
    smallest = torch.finfo(torch.float64).tiny
    before = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 0.5]], dtype=torch.float64)
    for weight, kept, none in (
        (smallest, [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        (smallest / 2, [0.25, 0.75, 0.0], [0.0] * 3),
    ):
        soft = torch.tensor([weight, 0.0, 1.0], dtype=torch.float64)
        assert vectors.shares(soft, before).tolist() == [kept, [0.0, 0.0, 1.0]]
        assert vectors.shares(soft).tolist() == [none, [0.0, 0.0, 1.0]]


def test_frozen_scales_are_those_of_the_first_batch() -> None:
    component, first, later = DelTA(scale="first_batch"), draw_batch(1), draw_batch(2)
    metrics = component(first)[1]
    frozen = {1: metrics["margin_scale_positive"], -1: metrics["margin_scale_negative"]}
    weights, later_metrics = component(replace(later, first_metrics=metrics))
    expected = torch.tensor(delta_oracle(component, later, frozen), dtype=torch.float64)
    torch.testing.assert_close(weights[later.response_mask], expected, rtol=1e-9, atol=1e-9)
    assert later_metrics["margin_scale_positive"] == metrics["margin_scale_positive"]
    assert not torch.allclose(weights, DelTA()(later)[0])


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25)
def test_properties_of_every_ablation(seed: int) -> None:
    batch = draw_batch(seed)
    opposite = replace(batch, advantages=-batch.advantages)
    mask = batch.response_mask
    for component in ABLATIONS:
        weights, _ = component(batch)
        torch.testing.assert_close(component(opposite)[0], weights, rtol=1e-9, atol=1e-9)
        assert bool((weights >= 0).all())
        if component.normalised and component.range_map:
            assert abs(float(weights[mask].mean()) - 1) < 1e-9
            low, high = component.lambda_min / component.lambda_max, component.lambda_max / component.lambda_min
            assert low - 1e-12 <= weights[mask].min() <= weights[mask].max() <= high + 1e-12
    one_group = replace(batch, group_ids=torch.zeros(B, dtype=torch.int64))
    torch.testing.assert_close(DelTA(scope="group")(one_group)[0], DelTA()(batch)[0], rtol=0, atol=0)
    torch.testing.assert_close(DelTA(scope="rank", ranks=1)(batch)[0], DelTA()(batch)[0], rtol=0, atol=0)
    assert float(WithinSide()(batch)[1]["token_weight_mean"]) == pytest.approx(1)


def test_random_lambda_has_mean_one_the_range_and_new_draws() -> None:
    batch = rollout_batch([100] * 50, torch.Generator().manual_seed(0), advantages=torch.zeros(50))
    first, second = RandomLambda()(batch)[0], RandomLambda()(batch)[0]
    assert abs(float(first.mean()) - 1) < 1e-12
    assert 0.78 < float(first.min()) < 0.82 and 1.18 < float(first.max()) < 1.22
    assert abs(float(first.std()) - 0.4 / math.sqrt(12)) < 0.005
    assert not torch.equal(first, second)
    again = RandomLambda()(replace(batch, generator=torch.Generator().manual_seed(0)))[0]
    assert torch.equal(first, again)


@pytest.mark.parametrize("keep", ["top", "bottom"])
def test_lambda_selection_keeps_the_end_of_the_ranking(keep: Any) -> None:
    for seed in range(5):
        batch = draw_batch(seed)
        mask = batch.response_mask
        padded, metrics = LambdaSelection(keep=keep)(batch)
        weights = padded[mask]
        lambdas, acts = DelTA()(batch)[0][mask], batch.token_advantages != 0
        kept = weights > 0
        assert metrics["selected_token_fraction"] == pytest.approx(int(kept.sum()) / int(mask.sum()))
        assert not kept[~acts].any()
        assert int(kept.sum()) == math.ceil(0.5 * int(acts.sum()))
        left = lambdas[acts & ~kept]
        if keep == "top":
            assert float(lambdas[kept].min()) >= float(left.max())
        else:
            assert float(lambdas[kept].max()) <= float(left.min())
        mini_batches = batch.mini_batch_ids.repeat_interleave(mask.sum(dim=1))
        for mini_batch in (0, 1):
            members = mini_batches == mini_batch
            if bool(kept[members].any()):
                assert float(weights[members].mean()) == pytest.approx(1)


def test_random_selection_and_ratio_one() -> None:
    batch = draw_batch(3)
    first, second = (LambdaSelection(keep="random")(batch)[0] for _ in range(2))
    assert int((first > 0).sum()) == int((second > 0).sum()) and not torch.equal(first, second)
    everything = LambdaSelection(ratio=1.0, denominator="all")(batch)[0][batch.response_mask]
    assert torch.equal(everything > 0, batch.token_advantages != 0)


def test_lambdas_that_are_equal_to_the_trainers_precision_are_ranked_at_random() -> None:
    """The first in the ranking is punished, the second one of two rewarded tokens 1e-9 apart."""
    batch = of_vectors([[4.0], [4.0 + 1e-9], [1.0]], [[1.0], [3.0]])
    kept = {}
    for dtype in (torch.float32, torch.float64):
        draws = [replace(batch, old_log_probs=batch.old_log_probs.to(dtype)) for _ in range(20)]
        kept[dtype] = {tuple(LambdaSelection(ratio=0.4)(each)[0][0, :2].sign().tolist()) for each in draws}
    assert kept == {torch.float32: {(1, 0), (0, 1)}, torch.float64: {(0, 1)}}


def matched_oracle(keep: str, ratio: float, batch: RolloutBatch) -> list[float]:
    """Weights of the real tokens by a loop over each side's tokens, sorted by lambda."""
    tokens = tokens_of(batch)
    lambdas = delta_oracle(DelTA(), batch)
    masses = [abs(float(batch.advantages[x[0]])) * (1 - math.exp(float(batch.old_log_probs[x]))) for x in tokens]
    weights = [0.0] * len(tokens)
    for sign in (1, -1):
        own = [n for n, (i, _) in enumerate(tokens) if float(batch.advantages[i]) * sign > 0]
        total, kept = math.fsum(masses[n] for n in own), []
        for n in sorted(own, key=lambda n: lambdas[n], reverse=keep == "top"):
            kept.append(n)
            if math.fsum(masses[each] for each in kept) >= ratio * total:
                break
        for n in kept:
            weights[n] = total / math.fsum(masses[each] for each in kept)
    return weights


@pytest.mark.parametrize("ratio", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("keep", ["top", "bottom"])
def test_the_matched_selection_equals_the_reference(keep: Any, ratio: float) -> None:
    for seed in range(5):
        batch = draw_batch(seed)
        weights, _ = MatchedLambdaSelection(keep=keep, ratio=ratio)(batch)
        expected = torch.tensor(matched_oracle(keep, ratio, batch), dtype=torch.float64)
        torch.testing.assert_close(weights[batch.response_mask], expected, rtol=1e-12, atol=0)


def test_the_matched_selection_by_hand() -> None:
    """Rewarded vectors 4, 3, 1, 0 and punished 0, 0, 1, all of mass one half: two of four and two of three reach half.

    The centroids are 2 and 1/3, and sigmoid is monotone: lambda grows with a rewarded token's vector, and falls with a
    punished one's. The kept tokens of a side weigh 2 and 3/2.
    """
    batch = of_vectors([[4.0], [3.0], [1.0], [0.0]], [[0.0], [0.0], [1.0]])
    top, metrics = MatchedLambdaSelection(keep="top")(batch)
    assert top.tolist() == [[2.0, 2.0, 0.0, 0.0], [1.5, 1.5, 0.0, 0.0]]
    assert metrics["selected_mass_fraction_positive"] == 0.5
    assert metrics["selected_mass_fraction_negative"] == pytest.approx(2 / 3)
    assert metrics["selected_token_fraction"] == pytest.approx(4 / 7)
    assert MatchedLambdaSelection(ratio=1.0)(batch)[1]["selected_token_fraction"] == 1.0
    bottom = MatchedLambdaSelection(keep="bottom")(batch)[0]
    assert bottom[0].tolist() == [0.0, 0.0, 2.0, 2.0]
    assert float(bottom[1, 2]) == 1.5 and sorted(bottom[1, :2].tolist()) == [0.0, 1.5]


def test_every_end_of_a_matched_selection_has_the_sides_gradient_mass() -> None:
    for seed in range(5):
        batch = draw_batch(seed)
        mask, advantages = batch.response_mask, batch.token_advantages
        masses = advantages.abs() * (1 - batch.old_log_probs[mask].exp())
        for keep in ("top", "random", "bottom"):
            weights = MatchedLambdaSelection(keep=keep)(batch)[0][mask]
            for side in (advantages > 0, advantages < 0):
                torch.testing.assert_close((weights * masses)[side].sum(), masses[side].sum())
            assert not weights[advantages == 0].any()


def test_a_side_without_gradient_or_tokens_has_no_part_in_a_matched_selection() -> None:
    batch = draw_batch(1, "positive")
    certain = replace(batch, old_log_probs=torch.zeros_like(batch.old_log_probs))
    for each in (batch, certain, draw_batch(1, "zero")):
        assert bool(MatchedLambdaSelection()(each)[0].isfinite().all())
    assert MatchedLambdaSelection()(certain)[0].unique().tolist() == [0.0, 1.0]
