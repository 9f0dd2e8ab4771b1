"""The meaning of each setting of the recipes, its unit, and the paper or program that it comes from.

The documentation's page of settings is made from this table (``make reference``). A test checks that every setting
of every recipe has an entry here, and that every entry belongs to a setting.
"""

from __future__ import annotations

from typing import NamedTuple

TELE = "Sun et al., 2022"
ANCE = "Xiong et al., 2021"
ZHAN = "Zhan et al., 2021"
AR2 = "Zhang et al., 2022"
CACHE = "Gao et al., 2021"
MARGINS = "de Souza P. Moreira et al., 2024"
GUIDE = "Solatorio, 2024"
DISTIL = "Hinton et al., 2015; Hofstätter et al., 2020"
DPR = "Karpukhin et al., 2020"


class Meaning(NamedTuple):
    """The meaning of a setting to the person who sets it.

    Attributes
    ----------
    what : the meaning, in one or two sentences.
    unit : what a value counts, or how it is written; empty for names and switches.
    paper : the source of the setting; empty for settings that only hardneg has.
    """

    what: str
    unit: str = ""
    paper: str = ""


MEANINGS: dict[str, Meaning] = {
    # how long, how much
    "epochs": Meaning("How often training goes through all training queries. `steps` wins over it.", "passes"),
    "warmup.epochs": Meaning(
        "How often training goes through all training queries with each mixture. `steps` wins over it.", "passes"
    ),
    "ance-tele.epochs": Meaning(
        "How often a full episode goes through all training queries. `steps` wins over it.", "passes"
    ),
    "ance.epochs": Meaning(
        "How often training goes through all training queries. `refresh_every` follows from it. If you set"
        " `refresh_every`, it replaces the `epochs` of a preset or of a settings file.",
        "passes",
    ),
    "steps": Meaning("Training steps of the learning-rate schedule. They win over `epochs`.", "optimiser steps"),
    "warmup.steps": Meaning(
        "Length of the schedule of each mixture, in order; the last value repeats. It wins over `epochs`.",
        "list of optimiser steps",
    ),
    "stop_step": Meaning(
        "Training ends after this step. The learning rate falls as if it went on to the end of the schedule.",
        "optimiser steps",
    ),
    "ance-tele.stop_step": Meaning(
        "Every episode with mined negatives, except the last one, ends after this step. The learning rate falls as"
        " if it went on. It wins over `stop_fraction`.",
        "optimiser steps",
        TELE,
    ),
    "stop_fraction": Meaning(
        "Every episode with mined negatives, except the last one, ends after this share of the schedule.",
        "share, above 0 to 1",
        TELE,
    ),
    "min_steps": Meaning("Minimum number of steps that `epochs` may give.", "optimiser steps"),
    "max_steps": Meaning(
        "Maximum number of steps that `epochs` may give. `ar2` makes at least one in each iteration, `ance` at"
        " least one with each version of the negatives. `steps` overrides it.",
        "optimiser steps",
    ),
    "episodes": Meaning("Number of episodes. Before each, the negatives are mined anew.", "episodes", TELE),
    "start_episode": Meaning("The first episode; a later one begins with `--pool POOL`.", "number from 1"),
    "start": Meaning(
        "What an episode's training starts from: `scratch`, the untrained model; `continue`, the model of the"
        " episode before.",
        "",
        TELE,
    ),
    "first": Meaning(
        "What the first episode trains on: `mined`, negatives of the untrained model; `in_batch`, the other"
        " passages of the step alone, so that the model that mines first has seen the training queries."
    ),
    "first_epochs": Meaning(
        "Length of a first episode with in-batch negatives alone.", "passes over the training queries"
    ),
    "first_steps": Meaning(
        "Length of a first episode with in-batch negatives, in steps. It wins over `first_epochs`.",
        "optimiser steps",
    ),
    "first_queries": Meaning(
        "Queries of a step of a first episode with in-batch negatives. None: `queries_per_step`.",
        "training queries",
    ),
    "ance.refresh_every": Meaning("Steps between two refreshes of the negatives.", "optimiser steps", ANCE),
    "adore.refresh_every": Meaning(
        "Steps after which static negatives are mined anew; none: never.", "optimiser steps", ZHAN
    ),
    "refreshes": Meaning(
        "How often the negatives are mined anew. Training makes (`refreshes` + 1) × `refresh_every` steps.",
        "refreshes",
        ANCE,
    ),
    "iterations": Meaning("How many turns each of the two models has.", "iterations", AR2),
    "retriever_steps": Meaning("Steps of the retriever in an iteration.", "optimiser steps", AR2),
    "ranker_steps": Meaning("Steps of the ranker in an iteration.", "optimiser steps", AR2),
    "ar2.epochs": Meaning(
        "How often the retriever goes through all training queries, in all iterations. `retriever_steps` follows"
        " from it, and `ranker_steps` keeps its ratio to that. If you set `retriever_steps`, it replaces the"
        " `epochs` of a preset or of a settings file, and both are taken as they are.",
        "passes",
    ),
    "first_ranker_epochs": Meaning(
        "How often the first ranker goes through all training queries. `first_ranker_steps` follows from it."
        " If you set `first_ranker_steps`, it replaces a preset's `first_ranker_epochs`.",
        "passes",
    ),
    "first_ranker_steps": Meaning(
        "Steps that train the first ranker where none is given (`--ranker`).", "optimiser steps", AR2
    ),
    "queries_per_step": Meaning("Queries of one optimiser step, over all devices: the batch size.", "queries"),
    "ranker_queries_per_step": Meaning("Queries of one step of the ranker.", "queries", AR2),
    "first_ranker_queries_per_step": Meaning("Queries of one step of the first ranker.", "queries", AR2),
    # optimiser
    "learning_rate": Meaning(
        "Peak learning rate; it falls to 0 at the end of the schedule. `warmup`, `star` and `ance-tele`"
        " take a list, too: each rate is tried (`trial_share`), and training goes on with the best one on dev.",
        "number",
    ),
    "trial_share": Meaning(
        "The share of the schedule for which each of several learning rates is tried, in the first episode. The"
        " steps of the best one count as training; those of the others come in addition.",
        "share",
    ),
    "ranker_learning_rate": Meaning("Peak learning rate of the ranker.", "number", AR2),
    "first_ranker_learning_rate": Meaning("Peak learning rate of the first ranker.", "number", AR2),
    "optimizer": Meaning("The optimiser: `adamw`, or `lamb` for large batches (You et al., 2020)."),
    "weight_decay": Meaning("Decoupled weight decay of all matrices.", "number"),
    "warmup": Meaning(
        "How long the learning rate rises at the beginning: below 1 a share of the schedule, else steps.",
        "share or optimiser steps",
    ),
    "clip": Meaning("A gradient with a larger norm is scaled down to this norm.", "norm"),
    "horizon": Meaning(
        "Steps over which the learning rate falls to 0. None: all steps that are made; with `schedule = cyclical`"
        " the number of training queries.",
        "optimiser steps",
        ANCE,
    ),
    "schedule": Meaning(
        "`single`: one rise and fall of the learning rate. `cyclical`: it begins anew with each refresh.", "", ANCE
    ),
    "reinit_layers": Meaning(
        "Number of top layers of the transformer that begin with random weights.",
        "layers",
    ),
    "reinit_seed": Meaning("Seed of the random weights of `reinit_layers`.", "integer"),
    # negatives
    "mixtures": Meaning(
        "Where negatives come from, one mixture after the other. Sources are joined by `+`: `bm25`, `random`,"
        " `file`, `in_batch`, `nce`.",
        "list of mixtures",
        f"{DPR}; {ANCE}",
    ),
    "warmup.negatives": Meaning(
        "Mined negatives of a query in a step, for each mixture; the last value repeats.", "list of passages"
    ),
    "adore.negatives": Meaning(
        "`dynamic`: what the model retrieves at this step. `static`: what it retrieved before training. `random`:"
        " random passages. The last two are for comparison.",
        "",
        ZHAN,
    ),
    "sources": Meaning(
        "Where negatives come from: `first` (`--pool`, else what ranks first), `bm25`, `query` (hits of"
        " `--retriever`), `random`. None: `first`.",
        "list of sources",
    ),
    "negatives_per_query": Meaning("Mined negatives of a query in a step.", "passages"),
    "passages_reference": Meaning(
        "Passages of a query in a step (one positive and its negatives), for each episode; the last value repeats."
        " Values of the published code.",
        "list of passages",
        f"{TELE} (code)",
    ),
    "passages_paper": Meaning(
        "As `passages_reference`, with the values of the paper.", "list of passages", f"{TELE}, Table 5"
    ),
    "group_sizes": Meaning("Which of the two lists is used: `reference` or `paper`.", "", TELE),
    "in_batch": Meaning("Whether the passages of a step's other queries are negatives too.", "", DPR),
    "ance-tele.in_batch": Meaning(
        "Whether the passages of a step's other queries are negatives too, as in the published code.",
        "",
        f"{TELE} (code)",
    ),
    "depth": Meaning(
        "How deep negatives are mined: they are drawn from this many first hits of the query.",
        "passages",
    ),
    "adore.depth": Meaning("Passages that are retrieved for a query at each step.", "passages", ZHAN),
    "ar2.depth": Meaning("Candidates of a query: the first hits of the retriever.", "passages", AR2),
    "count": Meaning(
        "Negatives that the pool keeps for a query from each source. Each step draws a few of them.", "passages"
    ),
    "ance-tele.count": Meaning(
        "Half the number of newly mined negatives of a query: `2 × count` are mined in each episode.",
        "passages",
        TELE,
    ),
    "ance-tele.alpha": Meaning(
        "Share of momentum negatives (from the episode before) in the pool. 0: none.", "share, 0 to below 1", TELE
    ),
    "star.alpha": Meaning(
        "Weight of the in-batch part of the loss. `implicit`: every pair weighs the same, as in the published"
        " code.",
        "number, or implicit",
        f"{ZHAN}, Eq. 13",
    ),
    "beta": Meaning(
        "Share of lookahead negatives (near the positive passage) among the newly mined ones. 0: none.",
        "share, 0 to below 1",
        TELE,
    ),
    "momentum": Meaning(
        "`weighted`: momentum keeps its share `alpha`. `accumulate`: pools are concatenated, as in the published"
        " code.",
        "",
        TELE,
    ),
    "lookahead": Meaning(
        "Whose neighbours lookahead mines: the query's `first` positive, or `all` of them.", "", TELE
    ),
    "extra": Meaning("More sources that are added to the pool: `bm25`, `random`.", "list of sources", TELE),
    "dedup": Meaning(
        "Whether a passage that two sources found stands in the pool once. The paper keeps both.", "", TELE
    ),
    "positives": Meaning(
        "Which positive a query trains with: `rotate`, another one in each epoch; `first`, always the first.", ""
    ),
    "mask_known_positives": Meaning(
        "Whether a passage that is a positive of the query, or has the text of one, is left out of its negatives."
    ),
    "max_score": Meaning("A mined passage with a higher score is no negative.", "score", MARGINS),
    "absolute_margin": Meaning(
        "A mined passage is a negative only if its score is at least this much below the positive's.",
        "score",
        MARGINS,
    ),
    "relative_margin": Meaning(
        "A mined passage is a negative only if its score is at least this share below the positive's.",
        "share",
        MARGINS,
    ),
    "top": Meaning(
        "Maximum number of passages within the bounds to keep: those with the highest scores.", "passages", MARGINS
    ),
    "filter_by": Meaning(
        "Whose scores the bounds compare: `miner`, the model that mines; `start`, the one that training starts"
        " from; `given`, that of `--filter-by`."
    ),
    "ranker.filter_by": Meaning(
        "Whose scores the bounds compare: `miner`, the model that mines; `given`, that of `--filter-by`."
    ),
    "guide_mask": Meaning(
        "Whether a negative of a step is left out if the untrained model scores it above the positive.", "", GUIDE
    ),
    "guide_margin": Meaning(
        "Negatives whose score is above (positive's score - this margin) are masked.",
        "score",
        GUIDE,
    ),
    "mode": Meaning(
        "`sync`: one process mines and trains in turn. `async-fixed`: a second process mines meanwhile, by a"
        " schedule: reproducible bit for bit. `async` (`ance`): the same without a schedule.",
        "",
        ANCE,
    ),
    "max_staleness": Meaning(
        "Negatives may be at most this old when they are used (`mode = async`).", "optimiser steps", ANCE
    ),
    "stale": Meaning(
        "Whether training waits (`wait`) or ends (`stop`) when the negatives are older than `max_staleness`.",
        "",
        ANCE,
    ),
    "keep_versions": Meaning("How many older versions of the negatives stay on the disk. None: all.", "versions"),
    "index": Meaning(
        "What every step searches: `exact`, all vectors; `pq`, a compressed index; `given`, that of `--index`.",
        "",
        ZHAN,
    ),
    "subvectors": Meaning(
        "Codes of a passage in the compressed index. None: one for 4 dimensions.", "codes", ZHAN
    ),
    "bits": Meaning("Bits of a code in the compressed index.", "bits", ZHAN),
    # loss
    "warmup.loss": Meaning(
        "`contrastive`, `pairwise_nll`, `hinge` or `bce`. `auto`: contrastive with in-batch negatives, else"
        " pairwise_nll.",
        "",
        f"{DPR}; {ANCE}",
    ),
    "ance.loss": Meaning("`pairwise_nll`, `contrastive`, `hinge` or `bce`.", "", ANCE),
    "ranker.loss": Meaning(
        "`cross_entropy` over a query's passages, or `bce`, each passage by itself.", "", f"{AR2}, Eq. 2"
    ),
    "margin": Meaning(
        "Margin of the hinge loss, in logits; in scores it is this divided by the model's scale.", "logit"
    ),
    "cut": Meaning("Cutoff k of the measure. Required.", "passages", ZHAN),
    "measure": Meaning(
        "The measure that weighs a pair: by how much it changes if the two passages change places. `RR` is taken"
        " as if the pair's positive were the only one, `nDCG` with the ideal ranking of all positives of the"
        " query.",
        "",
        ZHAN,
    ),
    "weighted": Meaning("Whether pairs are weighed by the measure (LambdaRank) or not (RankNet).", "", ZHAN),
    "distill": Meaning(
        "Distillation loss: `kl` (KL divergence) or `margin_mse` (MSE of margins). None: no distillation.",
        "",
        DISTIL,
    ),
    "distill_weight": Meaning(
        "Weight of the teacher's part of the loss; the recipe's own part has 1 minus this.", "share", DISTIL
    ),
    "distill_scale": Meaning(
        "Factor from the student's scores to logits in the teacher's part. None: the model's scale.", "factor"
    ),
    "teacher_temperature": Meaning(
        "Divides the teacher's scores; those of a bi-encoder are multiplied by its own scale first.",
        "number",
        DISTIL,
    ),
    "game": Meaning("`ar2`, or `irgan`, the older game, for comparison.", "", f"{AR2}, Eq. 3 and 10"),
    "order": Meaning("Who has the first turn in an iteration.", "", f"{AR2}, Algorithm 1 and code"),
    "weighting": Meaning(
        "The loss of the retriever: `p_theta` as in the paper, `reference` as in the code.", "", AR2
    ),
    "balance": Meaning(
        "Weight of the adversarial part; distillation has the rest. 0: distillation alone.", "share, 0 to 1", AR2
    ),
    "temperature": Meaning("Divides the ranker's scores in distillation.", "number", AR2),
    # model
    "towers": Meaning("`tied`: one model for queries and passages. `untied`: one for each.", "", DPR),
    "pooling": Meaning("Which token vectors become the text's vector: `cls` (the first), `mean`, `last`."),
    "head": Meaning(
        "What comes after pooling: `none`, `ance` (linear layer and layer norm), or `dense` (the model's own"
        " linear layers).",
        "",
        ANCE,
    ),
    "normalize": Meaning("Whether vectors get length 1, so that scores are cosines."),
    "dim": Meaning("Vectors are cut to this many dimensions. None: whole.", "dimensions"),
    "scale": Meaning("Scores are multiplied by it in the loss: 1 / temperature.", "factor"),
    "prompts": Meaning("Prompts and lengths of a family of models: `e5`, `bge`, `gte`, `nomic`."),
    "query_prompt": Meaning('Text put before every query. `""`: no prompt.', "text"),
    "passage_prompt": Meaning('Text put before every passage. `""`: no prompt.', "text"),
    "query_length": Meaning("Maximum query length in tokens, special ones included.", "tokens"),
    "passage_length": Meaning("Maximum passage length in tokens, special ones included.", "tokens"),
    "train_passage_length": Meaning(
        "Maximum passage length in training steps alone: mining, dev, test and search read `passage_length`, which"
        " is at least as much. None: `passage_length`.",
        "tokens",
    ),
    "search_query_length": Meaning(
        "Length of queries in search and on test, where it differs from training. None: `query_length`.", "tokens"
    ),
    "max_length": Meaning(
        "Maximum tokens of a query and a passage together, up to the model's limit. The query gets at most half,"
        " or `query_length`; the passage gets the rest.",
        "tokens",
    ),
    "ranker_max_length": Meaning(
        "Maximum tokens of a query and a passage together, for the ranker, up to its limit.", "tokens"
    ),
    "ranker_query_length": Meaning("Maximum query length in tokens, for the ranker.", "tokens"),
    "use_titles": Meaning("Whether a passage's title stands before its text."),
    "title_join": Meaning("What stands between title and text: a separator token (`sep`) or a `space`."),
    "chunks": Meaning(
        "Maximum number of chunks of a document. The score of its best chunk counts (MaxP).", "chunks", ANCE
    ),
    "max_characters": Meaning(
        "Texts are cut at this length before they become tokens. 0: they are not.", "characters"
    ),
    # evaluation
    "measures": Meaning(
        "Measures of dev and test. The first one decides which state is kept.", "list, such as RR@10"
    ),
    "measure_every": Meaning(
        "How often dev is measured in training: an integer in steps, a number below 1 as a share of the schedule.",
        "optimiser steps or share",
    ),
    "dev_queries": Meaning(
        "Maximum number of dev queries. Queries with a relevant passage and an answer are drawn first. None: all"
        " of dev, or at most 500 held out.",
        "queries",
    ),
    "dev_passages": Meaning(
        "On dev, only BM25's top N passages of all dev queries and the positives are ranked, if these are under"
        " half of the corpus. None: all passages.",
        "passages",
    ),
    "mine_passages": Meaning(
        "Only the positives and BM25's top N passages of the queries that training visits are encoded, and"
        " negatives are mined among them. None: among all passages, for all queries. It has no effect where all"
        " passages are encoded anyway: with a test split, without dev, with dev on all passages, with"
        " `examine=all`, `guide_mask=true` or `filter_by=start`.",
        "passages",
    ),
    "keep": Meaning("Which state `model/` holds: the `last`, or the `best` on dev."),
    "patience": Meaning("Training ends after this many measurements without a better one.", "measurements"),
    "examine": Meaning(
        "`all`: training queries are searched too, so that forgetting is known. `judged`: only dev and test, as"
        " `ranker` does with either."
    ),
    "rerank": Meaning("First hits of a query that are re-ranked to measure a state.", "passages"),
    "rerank_depth": Meaning(
        "First hits of dev and test that measure the ranker. 0: it is not measured.", "passages"
    ),
    # positives
    "labels": Meaning(
        "`qrels`: judged passages are positives. `answers`: also, no passage that contains an answer is a"
        " negative.",
        "",
        DPR,
    ),
    "use_positive_ctxs": Meaning(
        "With `labels = answers`: whether positives of the data are used; those of `--judgements` always are.",
        "",
        DPR,
    ),
    "require_gold": Meaning("With `labels = answers`: leave out questions without a judged positive.", "", DPR),
    "answer_mode": Meaning("With `labels = answers`: answers are a `string` or a pattern (`regex`).", "", DPR),
    # machine
    "seed": Meaning(
        "Seed of every random draw. If training continues from a model of the same recipe and queries, the default"
        " seed changes.",
        "integer",
    ),
    "precision": Meaning(
        "Number format of encoding and training. The default is the fastest one of the machine: `bfloat16` where"
        " the hardware multiplies it. A resumed experiment keeps its own."
    ),
    "micro_queries": Meaning(
        "A step is computed in parts of this many queries, to save memory. In-batch negatives stay in a part."
        " Without other negatives, the parts are nearly equal, so that no query is alone in one.",
        "queries",
    ),
    "ranker_micro_queries": Meaning("As `micro_queries`, for the ranker.", "queries"),
    "gradient_cache": Meaning(
        "Whether a step is computed in chunks that keep all in-batch negatives, to save memory.", "", CACHE
    ),
    "cache_tokens": Meaning("Tokens of a chunk of the gradient cache.", "tokens", CACHE),
    "recompute_layers": Meaning(
        "Whether the backward pass computes layers again, to save memory.",
        "",
        "Chen et al., 2016",
    ),
    "token_budget": Meaning("Tokens of a batch when texts are encoded.", "tokens"),
    "store_dtype": Meaning("Number format of stored vectors."),
    "checkpoint_every": Meaning("Steps between two checkpoints.", "optimiser steps"),
    "bm25_lists": Meaning(
        "With `examine=all`: maximum number of training queries, drawn at random, whose lists by BM25 are kept."
        " The report then says which negatives BM25 would have found first. 0 keeps none, and so does `ranker`.",
        "queries",
    ),
    "pair_margins": Meaning(
        "Maximum number of training queries, drawn at random, whose margins are kept: by how much each step scored"
        " the positive above each negative. The audit suspects negatives whose margin stays low. 0: none,"
        " as in `ranker`, `adore` and `ar2`.",
        "queries",
    ),
    "tensorboard": Meaning("Whether metrics are written for TensorBoard, too."),
    "silent_seconds": Meaning("A process that gives no sign of life for this long counts as dead.", "seconds"),
}


def meaning_of(recipe: str, setting: str) -> Meaning:
    """Find what a setting means in a recipe: an entry of the recipe, else the one that all recipes share.

    Raises
    ------
    LookupError : the table has no such setting.
    """
    found = MEANINGS.get(f"{recipe}.{setting}") or MEANINGS.get(setting)
    if found is None:
        where = f"recipe {recipe}" if recipe else "all recipes"
        raise LookupError(f"setting {setting} of {where} has no meaning: add it to meanings.py")
    return found
