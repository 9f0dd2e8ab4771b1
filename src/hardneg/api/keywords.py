"""Keywords of the functions that train, as editors and type checkers see them.

Made by ``make reference`` from the settings of the recipes. Change those, not this module.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from hardneg.api.inputs import Place
from hardneg.data.training_data import Splits
from hardneg.experiment.observers import Told
from hardneg.recipes.settings import TrainingSettings


class Options(TypedDict, total=False):
    """What an experiment is given."""

    preset: str | None
    config: Place | None
    settings: TrainingSettings | None
    splits: Splits
    seeds: int
    minutes: float | None
    negatives: Place | int | list[int] | None
    index_folder: Place | None
    filter_by: Place | None
    teacher: Place | None
    ranker: Place | None
    judgements: Place | None
    passage_model: Place | None
    allow_bin: bool
    cache: Place | None
    device: str | None
    role: str | None
    trainer_devices: int | None
    inferencer_devices: int | None
    retriever: Place | None
    on_step: Told | None
    on_state: Told | None
    progress: bool | None


class Keywords(Options, total=False):
    """What an experiment and every recipe take."""

    towers: Literal["tied", "untied"] | None
    """`tied`: one model for queries and passages. `untied`: one for each."""
    pooling: Literal["cls", "mean", "last"] | None
    """Which token vectors become the text's vector: `cls` (the first), `mean`, `last`."""
    head: Literal["none", "ance", "dense"] | None
    """What comes after pooling: `none`, `ance` (linear layer and layer norm), or `dense` (the model's own linear
    layers).
    """
    normalize: bool | None
    """Whether vectors get length 1, so that scores are cosines."""
    dim: int | None
    """Vectors are cut to this many dimensions. None: whole."""
    scale: float | None
    """Scores are multiplied by it in the loss: 1 / temperature."""
    title_join: Literal["sep", "space"] | None
    """What stands between title and text: a separator token (`sep`) or a `space`."""
    use_titles: bool | None
    """Whether a passage's title stands before its text."""
    prompts: Literal["e5", "bge", "gte", "nomic"] | None
    """Prompts and lengths of a family of models: `e5`, `bge`, `gte`, `nomic`."""
    query_prompt: str | None
    """Text put before every query. `""`: no prompt."""
    passage_prompt: str | None
    """Text put before every passage. `""`: no prompt."""
    query_length: int | None
    """Maximum query length in tokens, special ones included."""
    passage_length: int | None
    """Maximum passage length in tokens, special ones included."""
    chunks: int | None
    """Maximum number of chunks of a document. The score of its best chunk counts (MaxP)."""
    max_characters: int | None
    """Texts are cut at this length before they become tokens. 0: they are not."""
    search_query_length: int | None
    """Length of queries in search and on test, where it differs from training. None: `query_length`."""
    train_passage_length: int | None
    """Maximum passage length in training steps alone: mining, dev, test and search read `passage_length`, which
    is at least as much. None: `passage_length`.
    """
    reinit_layers: int
    """Number of top layers of the transformer that begin with random weights."""
    reinit_seed: int
    """Seed of the random weights of `reinit_layers`."""
    optimizer: Literal["adamw", "lamb"]
    """The optimiser: `adamw`, or `lamb` for large batches (You et al., 2020)."""
    queries_per_step: int
    """Queries of one optimiser step, over all devices: the batch size."""
    weight_decay: float
    """Decoupled weight decay of all matrices."""
    warmup: float
    """How long the learning rate rises at the beginning: below 1 a share of the schedule, else steps."""
    clip: float
    """A gradient with a larger norm is scaled down to this norm."""
    micro_queries: int | None
    """A step is computed in parts of this many queries, to save memory. In-batch negatives stay in a part.
    Without other negatives, the parts are nearly equal, so that no query is alone in one.
    """
    gradient_cache: bool
    """Whether a step is computed in chunks that keep all in-batch negatives, to save memory."""
    cache_tokens: int
    """Tokens of a chunk of the gradient cache."""
    recompute_layers: bool
    """Whether the backward pass computes layers again, to save memory."""
    mask_known_positives: bool
    """Whether a passage that is a positive of the query, or has the text of one, is left out of its negatives."""
    min_steps: int | None
    """Minimum number of steps that `epochs` may give."""
    max_steps: int | None
    """Maximum number of steps that `epochs` may give. `ar2` makes at least one in each iteration, `ance` at least
    one with each version of the negatives. `steps` overrides it.
    """
    measure_every: int | float | None
    """How often dev is measured in training: an integer in steps, a number below 1 as a share of the schedule."""
    dev_queries: int | None
    """Maximum number of dev queries. Queries with a relevant passage and an answer are drawn first. None: all of
    dev, or at most 500 held out.
    """
    dev_passages: int | None
    """On dev, only BM25's top N passages of all dev queries and the positives are ranked, if these are under half
    of the corpus. None: all passages.
    """
    keep: Literal["best", "last"]
    """Which state `model/` holds: the `last`, or the `best` on dev."""
    patience: int | None
    """Training ends after this many measurements without a better one."""
    examine: Literal["all", "judged"]
    """`all`: training queries are searched too, so that forgetting is known. `judged`: only dev and test, as
    `ranker` does with either.
    """
    labels: Literal["qrels", "answers"]
    """`qrels`: judged passages are positives. `answers`: also, no passage that contains an answer is a negative.
    """
    use_positive_ctxs: bool
    """With `labels = answers`: whether positives of the data are used; those of `--judgements` always are."""
    require_gold: bool
    """With `labels = answers`: leave out questions without a judged positive."""
    answer_mode: Literal["string", "regex"]
    """With `labels = answers`: answers are a `string` or a pattern (`regex`)."""
    depth: int
    """How deep negatives are mined: they are drawn from this many first hits of the query."""
    seed: int
    """Seed of every random draw. If training continues from a model of the same recipe and queries, the default
    seed changes.
    """
    precision: Literal["float32", "bfloat16"]
    """Number format of encoding and training. The default is the fastest one of the machine: `bfloat16` where the
    hardware multiplies it. A resumed experiment keeps its own.
    """
    token_budget: int
    """Tokens of a batch when texts are encoded."""
    store_dtype: Literal["float16", "float32"]
    """Number format of stored vectors."""
    bm25_lists: int
    """With `examine=all`: maximum number of training queries, drawn at random, whose lists by BM25 are kept. The
    report then says which negatives BM25 would have found first. 0 keeps none, and so does `ranker`.
    """
    pair_margins: int
    """Maximum number of training queries, drawn at random, whose margins are kept: by how much each step scored
    the positive above each negative. The audit suspects negatives whose margin stays low. 0: none, as in
    `ranker`, `adore` and `ar2`.
    """
    measures: str | list[str]
    """Measures of dev and test. The first one decides which state is kept."""
    checkpoint_every: int
    """Steps between two checkpoints."""
    tensorboard: bool
    """Whether metrics are written for TensorBoard, too."""
    silent_seconds: float
    """A process that gives no sign of life for this long counts as dead."""


class AnceTeleKeywords(Keywords, total=False):
    """What ``train ance-tele`` takes."""

    learning_rate: float | list[float]
    """Peak learning rate; it falls to 0 at the end of the schedule. `warmup`, `star` and `ance-tele` take a list,
    too: each rate is tried (`trial_share`), and training goes on with the best one on dev.
    """
    max_score: float | None
    """A mined passage with a higher score is no negative."""
    absolute_margin: float | None
    """A mined passage is a negative only if its score is at least this much below the positive's."""
    relative_margin: float | None
    """A mined passage is a negative only if its score is at least this share below the positive's."""
    top: int | None
    """Maximum number of passages within the bounds to keep: those with the highest scores."""
    guide_mask: bool
    """Whether a negative of a step is left out if the untrained model scores it above the positive."""
    guide_margin: float
    """Negatives whose score is above (positive's score - this margin) are masked."""
    distill: Literal["kl", "margin_mse"] | None
    """Distillation loss: `kl` (KL divergence) or `margin_mse` (MSE of margins). None: no distillation."""
    distill_weight: float
    """Weight of the teacher's part of the loss; the recipe's own part has 1 minus this."""
    distill_scale: float | None
    """Factor from the student's scores to logits in the teacher's part. None: the model's scale."""
    teacher_temperature: float
    """Divides the teacher's scores; those of a bi-encoder are multiplied by its own scale first."""
    trial_share: float
    """The share of the schedule for which each of several learning rates is tried, in the first episode. The
    steps of the best one count as training; those of the others come in addition.
    """
    episodes: int
    """Number of episodes. Before each, the negatives are mined anew."""
    start_episode: int
    """The first episode; a later one begins with `--pool POOL`."""
    start: Literal["scratch", "continue"]
    """What an episode's training starts from: `scratch`, the untrained model; `continue`, the model of the
    episode before.
    """
    group_sizes: Literal["reference", "paper"]
    """Which of the two lists is used: `reference` or `paper`."""
    passages_reference: list[int]
    """Passages of a query in a step (one positive and its negatives), for each episode; the last value repeats.
    Values of the published code.
    """
    passages_paper: list[int]
    """As `passages_reference`, with the values of the paper."""
    epochs: float
    """How often a full episode goes through all training queries. `steps` wins over it."""
    steps: int | None
    """Training steps of the learning-rate schedule. They win over `epochs`."""
    stop_fraction: float
    """Every episode with mined negatives, except the last one, ends after this share of the schedule."""
    stop_step: int | None
    """Every episode with mined negatives, except the last one, ends after this step. The learning rate falls as
    if it went on. It wins over `stop_fraction`.
    """
    first: Literal["mined", "in_batch"]
    """What the first episode trains on: `mined`, negatives of the untrained model; `in_batch`, the other passages
    of the step alone, so that the model that mines first has seen the training queries.
    """
    first_queries: int | None
    """Queries of a step of a first episode with in-batch negatives. None: `queries_per_step`."""
    first_epochs: float
    """Length of a first episode with in-batch negatives alone."""
    first_steps: int | None
    """Length of a first episode with in-batch negatives, in steps. It wins over `first_epochs`."""
    in_batch: bool
    """Whether the passages of a step's other queries are negatives too, as in the published code."""
    count: int
    """Half the number of newly mined negatives of a query: `2 × count` are mined in each episode."""
    alpha: float
    """Share of momentum negatives (from the episode before) in the pool. 0: none."""
    beta: float
    """Share of lookahead negatives (near the positive passage) among the newly mined ones. 0: none."""
    momentum: Literal["weighted", "accumulate"]
    """`weighted`: momentum keeps its share `alpha`. `accumulate`: pools are concatenated, as in the published
    code.
    """
    dedup: bool
    """Whether a passage that two sources found stands in the pool once. The paper keeps both."""
    extra: list[Literal["bm25", "random"]]
    """More sources that are added to the pool: `bm25`, `random`."""
    lookahead: Literal["first", "all"]
    """Whose neighbours lookahead mines: the query's `first` positive, or `all` of them."""
    positives: Literal["rotate", "first"]
    """Which positive a query trains with: `rotate`, another one in each epoch; `first`, always the first."""


class WarmupKeywords(Keywords, total=False):
    """What ``train warmup`` takes."""

    learning_rate: float | list[float]
    """Peak learning rate; it falls to 0 at the end of the schedule. `warmup`, `star` and `ance-tele` take a list,
    too: each rate is tried (`trial_share`), and training goes on with the best one on dev.
    """
    max_score: float | None
    """A mined passage with a higher score is no negative."""
    absolute_margin: float | None
    """A mined passage is a negative only if its score is at least this much below the positive's."""
    relative_margin: float | None
    """A mined passage is a negative only if its score is at least this share below the positive's."""
    top: int | None
    """Maximum number of passages within the bounds to keep: those with the highest scores."""
    guide_mask: bool
    """Whether a negative of a step is left out if the untrained model scores it above the positive."""
    guide_margin: float
    """Negatives whose score is above (positive's score - this margin) are masked."""
    distill: Literal["kl", "margin_mse"] | None
    """Distillation loss: `kl` (KL divergence) or `margin_mse` (MSE of margins). None: no distillation."""
    distill_weight: float
    """Weight of the teacher's part of the loss; the recipe's own part has 1 minus this."""
    distill_scale: float | None
    """Factor from the student's scores to logits in the teacher's part. None: the model's scale."""
    teacher_temperature: float
    """Divides the teacher's scores; those of a bi-encoder are multiplied by its own scale first."""
    trial_share: float
    """The share of the schedule for which each of several learning rates is tried, in the first episode. The
    steps of the best one count as training; those of the others come in addition.
    """
    mixtures: list[str]
    """Where negatives come from, one mixture after the other. Sources are joined by `+`: `bm25`, `random`,
    `file`, `in_batch`, `nce`.
    """
    count: int
    """Negatives that the pool keeps for a query from each source. Each step draws a few of them."""
    loss: Literal["contrastive", "pairwise_nll", "hinge", "bce"] | Literal["auto"]
    """`contrastive`, `pairwise_nll`, `hinge` or `bce`. `auto`: contrastive with in-batch negatives, else
    pairwise_nll.
    """
    margin: float
    """Margin of the hinge loss, in logits; in scores it is this divided by the model's scale."""
    epochs: float
    """How often training goes through all training queries with each mixture. `steps` wins over it."""
    steps: list[int] | None
    """Length of the schedule of each mixture, in order; the last value repeats. It wins over `epochs`."""
    stop_step: int | None
    """Training ends after this step. The learning rate falls as if it went on to the end of the schedule."""
    positives: Literal["rotate", "first"]
    """Which positive a query trains with: `rotate`, another one in each epoch; `first`, always the first."""


class AnceKeywords(Keywords, total=False):
    """What ``train ance`` takes."""

    learning_rate: float
    """Peak learning rate; it falls to 0 at the end of the schedule. `warmup`, `star` and `ance-tele` take a list,
    too: each rate is tried (`trial_share`), and training goes on with the best one on dev.
    """
    max_score: float | None
    """A mined passage with a higher score is no negative."""
    absolute_margin: float | None
    """A mined passage is a negative only if its score is at least this much below the positive's."""
    relative_margin: float | None
    """A mined passage is a negative only if its score is at least this share below the positive's."""
    top: int | None
    """Maximum number of passages within the bounds to keep: those with the highest scores."""
    guide_mask: bool
    """Whether a negative of a step is left out if the untrained model scores it above the positive."""
    guide_margin: float
    """Negatives whose score is above (positive's score - this margin) are masked."""
    distill: Literal["kl", "margin_mse"] | None
    """Distillation loss: `kl` (KL divergence) or `margin_mse` (MSE of margins). None: no distillation."""
    distill_weight: float
    """Weight of the teacher's part of the loss; the recipe's own part has 1 minus this."""
    distill_scale: float | None
    """Factor from the student's scores to logits in the teacher's part. None: the model's scale."""
    teacher_temperature: float
    """Divides the teacher's scores; those of a bi-encoder are multiplied by its own scale first."""
    mode: Literal["sync", "async", "async-fixed"]
    """`sync`: one process mines and trains in turn. `async-fixed`: a second process mines meanwhile, by a
    schedule: reproducible bit for bit. `async` (`ance`): the same without a schedule.
    """
    refresh_every: int
    """Steps between two refreshes of the negatives."""
    refreshes: int
    """How often the negatives are mined anew. Training makes (`refreshes` + 1) × `refresh_every` steps."""
    epochs: float | None
    """How often training goes through all training queries. `refresh_every` follows from it. If you set
    `refresh_every`, it replaces the `epochs` of a preset or of a settings file.
    """
    horizon: int | None
    """Steps over which the learning rate falls to 0. None: all steps that are made; with `schedule = cyclical`
    the number of training queries.
    """
    schedule: Literal["single", "cyclical"]
    """`single`: one rise and fall of the learning rate. `cyclical`: it begins anew with each refresh."""
    negatives_per_query: int
    """Mined negatives of a query in a step."""
    loss: Literal["contrastive", "pairwise_nll", "hinge", "bce"]
    """`pairwise_nll`, `contrastive`, `hinge` or `bce`."""
    margin: float
    """Margin of the hinge loss, in logits; in scores it is this divided by the model's scale."""
    in_batch: bool
    """Whether the passages of a step's other queries are negatives too."""
    positives: Literal["rotate", "first"]
    """Which positive a query trains with: `rotate`, another one in each epoch; `first`, always the first."""
    max_staleness: int | None
    """Negatives may be at most this old when they are used (`mode = async`)."""
    stale: Literal["wait", "stop"]
    """Whether training waits (`wait`) or ends (`stop`) when the negatives are older than `max_staleness`."""
    keep_versions: int | None
    """How many older versions of the negatives stay on the disk. None: all."""


class StarKeywords(Keywords, total=False):
    """What ``train star`` takes."""

    learning_rate: float | list[float]
    """Peak learning rate; it falls to 0 at the end of the schedule. `warmup`, `star` and `ance-tele` take a list,
    too: each rate is tried (`trial_share`), and training goes on with the best one on dev.
    """
    max_score: float | None
    """A mined passage with a higher score is no negative."""
    absolute_margin: float | None
    """A mined passage is a negative only if its score is at least this much below the positive's."""
    relative_margin: float | None
    """A mined passage is a negative only if its score is at least this share below the positive's."""
    top: int | None
    """Maximum number of passages within the bounds to keep: those with the highest scores."""
    guide_mask: bool
    """Whether a negative of a step is left out if the untrained model scores it above the positive."""
    guide_margin: float
    """Negatives whose score is above (positive's score - this margin) are masked."""
    distill: Literal["kl", "margin_mse"] | None
    """Distillation loss: `kl` (KL divergence) or `margin_mse` (MSE of margins). None: no distillation."""
    distill_weight: float
    """Weight of the teacher's part of the loss; the recipe's own part has 1 minus this."""
    distill_scale: float | None
    """Factor from the student's scores to logits in the teacher's part. None: the model's scale."""
    teacher_temperature: float
    """Divides the teacher's scores; those of a bi-encoder are multiplied by its own scale first."""
    trial_share: float
    """The share of the schedule for which each of several learning rates is tried, in the first episode. The
    steps of the best one count as training; those of the others come in addition.
    """
    negatives_per_query: int
    """Mined negatives of a query in a step."""
    alpha: float | Literal["implicit"]
    """Weight of the in-batch part of the loss. `implicit`: every pair weighs the same, as in the published code.
    """
    epochs: float
    """How often training goes through all training queries. `steps` wins over it."""
    steps: int | None
    """Training steps of the learning-rate schedule. They win over `epochs`."""
    stop_step: int | None
    """Training ends after this step. The learning rate falls as if it went on to the end of the schedule."""
    positives: Literal["rotate", "first"]
    """Which positive a query trains with: `rotate`, another one in each epoch; `first`, always the first."""
    mine_passages: int | None
    """Only the positives and BM25's top N passages of the queries that training visits are encoded, and negatives
    are mined among them. None: among all passages, for all queries. It has no effect where all passages are
    encoded anyway: with a test split, without dev, with dev on all passages, with `examine=all`,
    `guide_mask=true` or `filter_by=start`.
    """


class AdoreKeywords(Keywords, total=False):
    """What ``train adore`` takes."""

    learning_rate: float
    """Peak learning rate; it falls to 0 at the end of the schedule. `warmup`, `star` and `ance-tele` take a list,
    too: each rate is tried (`trial_share`), and training goes on with the best one on dev.
    """
    cut: int
    """Cutoff k of the measure. Required."""
    measure: Literal["RR", "nDCG"]
    """The measure that weighs a pair: by how much it changes if the two passages change places. `RR` is taken as
    if the pair's positive were the only one, `nDCG` with the ideal ranking of all positives of the query.
    """
    weighted: bool
    """Whether pairs are weighed by the measure (LambdaRank) or not (RankNet)."""
    refresh_every: int | None
    """Steps after which static negatives are mined anew; none: never."""
    index: Literal["exact", "pq", "given"]
    """What every step searches: `exact`, all vectors; `pq`, a compressed index; `given`, that of `--index`."""
    subvectors: int | None
    """Codes of a passage in the compressed index. None: one for 4 dimensions."""
    bits: int
    """Bits of a code in the compressed index."""
    epochs: float
    """How often training goes through all training queries. `steps` wins over it."""
    steps: int | None
    """Training steps of the learning-rate schedule. They win over `epochs`."""


class Ar2Keywords(Keywords, total=False):
    """What ``train ar2`` takes."""

    learning_rate: float
    """Peak learning rate; it falls to 0 at the end of the schedule. `warmup`, `star` and `ance-tele` take a list,
    too: each rate is tried (`trial_share`), and training goes on with the best one on dev.
    """
    max_score: float | None
    """A mined passage with a higher score is no negative."""
    absolute_margin: float | None
    """A mined passage is a negative only if its score is at least this much below the positive's."""
    relative_margin: float | None
    """A mined passage is a negative only if its score is at least this share below the positive's."""
    top: int | None
    """Maximum number of passages within the bounds to keep: those with the highest scores."""
    iterations: int
    """How many turns each of the two models has."""
    order: Literal["ranker-first", "retriever-first"]
    """Who has the first turn in an iteration."""
    mode: Literal["sync", "async-fixed"]
    """`sync`: one process mines and trains in turn. `async-fixed`: a second process mines meanwhile, by a
    schedule: reproducible bit for bit. `async` (`ance`): the same without a schedule.
    """
    game: Literal["ar2", "irgan"]
    """`ar2`, or `irgan`, the older game, for comparison."""
    weighting: Literal["p_theta", "reference"]
    """The loss of the retriever: `p_theta` as in the paper, `reference` as in the code."""
    balance: float
    """Weight of the adversarial part; distillation has the rest. 0: distillation alone."""
    temperature: float
    """Divides the ranker's scores in distillation."""
    negatives_per_query: int
    """Mined negatives of a query in a step."""
    positives: Literal["rotate", "first"]
    """Which positive a query trains with: `rotate`, another one in each epoch; `first`, always the first."""
    rerank_depth: int
    """First hits of dev and test that measure the ranker. 0: it is not measured."""
    epochs: float | None
    """How often the retriever goes through all training queries, in all iterations. `retriever_steps` follows
    from it, and `ranker_steps` keeps its ratio to that. If you set `retriever_steps`, it replaces the `epochs` of
    a preset or of a settings file, and both are taken as they are.
    """
    retriever_steps: int
    """Steps of the retriever in an iteration."""
    ranker_steps: int
    """Steps of the ranker in an iteration."""
    ranker_learning_rate: float
    """Peak learning rate of the ranker."""
    ranker_queries_per_step: int
    """Queries of one step of the ranker."""
    ranker_micro_queries: int | None
    """As `micro_queries`, for the ranker."""
    ranker_max_length: int | None
    """Maximum tokens of a query and a passage together, for the ranker, up to its limit."""
    ranker_query_length: int | None
    """Maximum query length in tokens, for the ranker."""
    first_ranker_epochs: float | None
    """How often the first ranker goes through all training queries. `first_ranker_steps` follows from it. If you
    set `first_ranker_steps`, it replaces a preset's `first_ranker_epochs`.
    """
    first_ranker_steps: int
    """Steps that train the first ranker where none is given (`--ranker`)."""
    first_ranker_learning_rate: float
    """Peak learning rate of the first ranker."""
    first_ranker_queries_per_step: int
    """Queries of one step of the first ranker."""


class RankerTrainingKeywords(Keywords, total=False):
    """What ``train ranker`` takes."""

    learning_rate: float
    """Peak learning rate; it falls to 0 at the end of the schedule. `warmup`, `star` and `ance-tele` take a list,
    too: each rate is tried (`trial_share`), and training goes on with the best one on dev.
    """
    max_score: float | None
    """A mined passage with a higher score is no negative."""
    absolute_margin: float | None
    """A mined passage is a negative only if its score is at least this much below the positive's."""
    relative_margin: float | None
    """A mined passage is a negative only if its score is at least this share below the positive's."""
    top: int | None
    """Maximum number of passages within the bounds to keep: those with the highest scores."""
    sources: list[Literal["first", "bm25", "query", "random"]]
    """Where negatives come from: `first` (`--pool`, else what ranks first), `bm25`, `query` (hits of
    `--retriever`), `random`. None: `first`.
    """
    negatives_per_query: int
    """Mined negatives of a query in a step."""
    count: int
    """Negatives that the pool keeps for a query from each source. Each step draws a few of them."""
    loss: Literal["cross_entropy", "bce"]
    """`cross_entropy` over a query's passages, or `bce`, each passage by itself."""
    max_length: int | None
    """Maximum tokens of a query and a passage together, up to the model's limit. The query gets at most half, or
    `query_length`; the passage gets the rest.
    """
    epochs: float
    """How often training goes through all training queries. `steps` wins over it."""
    steps: int | None
    """Training steps of the learning-rate schedule. They win over `epochs`."""
    stop_step: int | None
    """Training ends after this step. The learning rate falls as if it went on to the end of the schedule."""
    positives: Literal["rotate", "first"]
    """Which positive a query trains with: `rotate`, another one in each epoch; `first`, always the first."""
    rerank: int
    """First hits of a query that are re-ranked to measure a state."""
