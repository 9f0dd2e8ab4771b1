"""All figures of a report in their order: the facts of each, its chart, and how it is read."""

from __future__ import annotations

from hardneg.report import charts
from hardneg.report import facts_audit as audit
from hardneg.report import facts_errors as errors
from hardneg.report import facts_forgetting as forgetting
from hardneg.report import facts_negatives as negatives
from hardneg.report import facts_queries as queries
from hardneg.report import facts_ranker as ranker
from hardneg.report import facts_results as results
from hardneg.report import facts_scores as scores
from hardneg.report import facts_time as time
from hardneg.report import facts_vectors as vectors
from hardneg.report.drawing import Figure
from hardneg.report.opened import Opened

SECTIONS: tuple[str, ...] = (
    "Results",
    "Learning curve",
    "Retriever and ranker",
    "Forgetting",
    "Negatives",
    "Scores and gradients",
    "Pairwise errors",
    "Geometry",
    "Where it got better or worse",
    "Queries",
    "False negatives",
    "Time and cost",
    "Settings",
)

FIGURES: tuple[Figure[Opened], ...] = (
    Figure(
        "results",
        "Results",
        "Every state of the model",
        "Means over the queries of each split. `final` is the model that the experiment leaves.",
        results.results_table,
        charts.results_chart,
    ),
    Figure(
        "comparisons",
        "Results",
        "Paired tests",
        "Two-sided randomisation tests over queries; intervals are 95 % bootstrap intervals of the difference. p"
        " is corrected by Holm over the tests of a measure.",
        results.tests_table,
    ),
    Figure(
        "fused",
        "Results",
        "Fused with BM25",
        "The hits of BM25 and of the model in one list, by reciprocal ranks (`hardneg fuse`). Weights tuned on dev"
        " may give more.",
        results.fused_table,
        charts.results_chart,
    ),
    Figure(
        "fused_tests",
        "Results",
        "Paired tests of the fused runs",
        "Whether BM25 adds to the final model, and whether training still helps where BM25 is asked too.",
        results.fused_tests_table,
    ),
    Figure(
        "reranking",
        "Results",
        "What re-ranking gains",
        "Measures of the first hits as they are given, as the ranker orders them, and in the best possible order.",
        results.reranking_table,
        charts.reranking_chart,
    ),
    Figure(
        "learning_curve",
        "Learning curve",
        "Loss",
        "Training loss by step (faint) and its moving mean. Steps are counted on from episode to episode.",
        results.loss_table,
        charts.loss_chart,
    ),
    Figure(
        "measured",
        "Learning curve",
        "Measured on the way",
        "The deciding measure of each state (ANCE-Tele, Figures 2 and 8b); diamonds lie within an episode. If"
        " episodes start from scratch, each has its own line, which begins at the untrained model.",
        results.measured_table,
        charts.measured_chart,
    ),
    Figure(
        "iterations",
        "Retriever and ranker",
        "Retriever and ranker by iteration",
        "The deciding measure of the retriever after each iteration, and of the ranker after it (AR2). The hits of"
        " the first retriever never change, so the ranker's figures on them are its own progress.",
        ranker.iterations_table,
        charts.iterations_chart,
    ),
    Figure(
        "pipeline",
        "Retriever and ranker",
        "Pipelines",
        "Retrievers alone, and with their first hits re-ranked by the first and the last ranker (AR2, Table 3)."
        " After training is after the last iteration, also where the state of an earlier one was kept.",
        ranker.pipeline_table,
        charts.pipeline_chart,
    ),
    Figure(
        "disagreement",
        "Retriever and ranker",
        "Where they disagree",
        "Shares of queries that get another first hit from the ranker, and of pairs of the retriever's first"
        " hits (at most 20 of those that are re-ranked) that the ranker turns round. The table has the shares of"
        " queries for which either is better by the deciding measure.",
        ranker.disagreement_table,
        charts.disagreement_chart,
    ),
    Figure(
        "entropy",
        "Retriever and ranker",
        "Entropy",
        "The entropy of the retriever's probabilities over the positive and its first 15 other hits (AR2, Table"
        " 6): equal scores have 2.77 nats, and a retriever that is sure of itself has few.",
        ranker.entropy_table,
        charts.entropy_chart,
    ),
    Figure(
        "loss_parts",
        "Retriever and ranker",
        "Parts of the retriever's loss",
        "The adversarial part and the distillation before they are weighed, and the entropy of each step's lists."
        " With weighting = p_theta the adversarial part says nothing about progress.",
        ranker.parts_table,
        charts.parts_chart,
    ),
    Figure(
        "ranker_loss",
        "Retriever and ranker",
        "Loss of the ranker",
        "The moving mean of its loss, when it was warmed up alone and in its turns with the retriever.",
        ranker.ranker_loss_table,
        charts.ranker_loss_chart,
    ),
    Figure(
        "forgetting",
        "Forgetting",
        "Forgotten and learned",
        "Training queries whose RR@100 fell, or rose, from one state to the next (ANCE-Tele, Figure 4), and from"
        " the first state to the last one. If a trained state before the last was kept, and was searched for the"
        " training queries, one more row goes to it.",
        forgetting.forgetting_table,
        charts.forgetting_chart,
    ),
    Figure(
        "trajectories",
        "Forgetting",
        "Ten queries",
        "The reciprocal rank of ten sampled training queries in each state (ANCE-Tele, Figures 3 and 8d). Equal"
        " lines lie on each other; the legend says which.",
        forgetting.trajectories_table,
        charts.trajectories_chart,
    ),
    Figure(
        "forgotten_queries",
        "Forgetting",
        "Queries forgotten most",
        "The training queries that fell most between two states, and the first negatives of the pool that"
        " training drew from meanwhile. Steps draw only a few negatives of a large pool.",
        forgetting.forgotten_table,
        texts=("text", "in the pool"),
    ),
    Figure(
        "composition",
        "Negatives",
        "Composition of the candidates",
        "Mined candidates by the list in which their query met them first (ANCE-Tele, Figures 5 and 10): BM25's,"
        " the query candidates of an episode (Q1, Q2, …) or its lookahead candidates (L1, L2, …). `adore` has"
        " them of the first model (episode 1) and of states on the way (step-4, …). Where BM25's lists were kept"
        " of a sample of the queries, all shares are of these queries. `other` was first met in a pool, such as"
        " random draws.",
        negatives.composition_table,
        charts.composition_chart,
    ),
    Figure(
        "composition_of_pools",
        "Negatives",
        "Composition of the pools",
        "Training negatives by the list in which their query met them first (ANCE-Tele, Figure 9). A negative"
        " from an older list need not be a momentum negative; the table of pools and momentum counts those. Where"
        " the candidates' lists are gone, or a pool is not drawn from them, the source that drew a negative stands"
        " for them. `other` was first met in a pool, such as random draws.",
        negatives.pools_table,
        charts.composition_chart,
    ),
    Figure(
        "momentum",
        "Negatives",
        "Pools and momentum",
        "The size of each pool, and the share of it that momentum carried over.",
        negatives.momentum_table,
    ),
    Figure(
        "new_negatives",
        "Negatives",
        "New negatives near d+",
        "Candidates that neither BM25's list (where it was kept) nor an episode had before, and how many of them"
        " were neighbours of the positive (d+) in the episode before: lookahead could have mined these an episode"
        " earlier (ANCE-Tele, Figures 7 and 10).",
        negatives.new_table,
        charts.new_chart,
    ),
    Figure(
        "swing",
        "Negatives",
        "Swing",
        "Candidates that are mined in one episode, absent in the next and mined again in the third (ANCE-Tele,"
        " Figure 6). Class A starts in episode 1, class B in episode 2. Pools are shown apart: random draws also"
        " add and remove passages.",
        negatives.swing_table,
        charts.swing_chart,
    ),
    Figure(
        "swing_cases",
        "Negatives",
        "Passages that swing",
        "Places in each episode's candidates, of the queries that show it best (ANCE-Tele, Table 10). Class B"
        " swings one episode later than class A.",
        negatives.swing_cases_table,
        texts=("query", "text"),
    ),
    Figure(
        "informative",
        "Negatives",
        "Informative negatives",
        "Shares of negatives that are among a query's first 100 hits, without positives, the query itself and"
        " repeated texts (ANCE, Section 6.3): of all those in the pool, after training drew some of them; and of"
        " in-batch negatives, expected over all batches (where 100 hits of each query were mined; a duplicate of a"
        " hit does not count there). With `depth` below 84 fewer than 100 hits may be left of a query with many"
        " positives, and with any depth of one with many duplicates; its share is lower then.",
        negatives.informative_table,
        charts.informative_chart,
    ),
    Figure(
        "overlap",
        "Negatives",
        "Test's first hits among training negatives",
        "The share of the first 100 irrelevant hits of judged queries that are a negative of any training query in"
        " the pool, whether or not a step drew it.",
        scores.overlap_table,
        charts.overlap_chart,
    ),
    Figure(
        "static_and_dynamic",
        "Negatives",
        "Static and dynamic negatives",
        "How many of the training negatives their queries retrieve (STAR, Figure 4a). `adore` logs this at every"
        " step. Other recipes have it for the states at which training on a pool began and ended, of at most"
        " 1,000 queries drawn at random, in their lists at mining depth.",
        time.overlap_by_step_table,
        charts.overlap_by_step_chart,
    ),
    Figure(
        "ranks_by_step",
        "Pairwise errors",
        "Ranks of training queries, step by step",
        "How high training queries rank their positives (STAR, Figure 4b): with `adore` those of each step before"
        " the step, as a moving mean; with other recipes all of them, in each state."
        " `hardneg diagnose` of several experiments lays static, dynamic and random negatives over one another.",
        time.ranking_by_step_table,
        charts.ranks_by_step_chart,
    ),
    Figure(
        "errors_by_step",
        "Pairwise errors",
        "Errors of training queries, step by step",
        "Passages in the retrieved list that stand above a positive, of the same queries as the figure before"
        " (STAR, Eq. 5 and Figure 4). A positive that the list does not reach counts every other passage of it.",
        time.ranking_by_step_table,
        charts.errors_by_step_chart,
    ),
    Figure(
        "score_profile",
        "Scores and gradients",
        "Score profile",
        "Scores of the first hits of sampled training queries above the query's mean over the corpus: the median"
        " of the queries (ANCE, Figure 3). A steep start says that few passages score much above the rest.",
        vectors.profile_table,
        charts.mean_profile_chart,
    ),
    Figure(
        "score_falls",
        "Scores and gradients",
        "How scores fall",
        "Scores of training queries' first hits above the hundredth: the median of at most 20,000 queries.",
        scores.profile_table,
        charts.profile_chart,
    ),
    Figure(
        "gradients",
        "Scores and gradients",
        "Gradient norms by layer",
        "Gradient norms before clipping: of all parameters, the mean of each third of the layers, and of the last"
        " layer (ANCE, Figure 4). A model with fewer than three layers has no thirds.",
        scores.gradients_table,
        charts.norms_chart,
    ),
    Figure(
        "gradients_by_source",
        "Scores and gradients",
        "Gradient norms by source",
        "The gradient that the negatives of each source cause: a source with a small one teaches little.",
        scores.source_gradients_table,
        charts.norms_chart,
    ),
    Figure(
        "pairwise_errors",
        "Pairwise errors",
        "Errors by state",
        "Irrelevant passages that score higher than a relevant one: all, and the first 200 of each positive (STAR,"
        " Table 1).",
        errors.errors_table,
        charts.errors_chart,
    ),
    Figure(
        "error_distribution",
        "Pairwise errors",
        "Errors by query",
        "Queries by their number of errors (STAR, Figure 3). In the paper a few queries have most of the errors.",
        errors.errors_distribution_table,
        charts.distribution_chart,
    ),
    Figure(
        "error_tests",
        "Pairwise errors",
        "Tests between states",
        "The mean difference in a query's errors, from each state to the one before and from the last to the"
        " untrained model, with 95 % bootstrap intervals. Below 0, the later state has fewer errors. p is of"
        " two-sided randomisation tests over queries. It is corrected by Holm over the pairs of states, apart for"
        " all errors and for the first ones.",
        errors.errors_tests_table,
        charts.errors_tests_chart,
    ),
    Figure(
        "training_errors",
        "Pairwise errors",
        "Errors of training queries by state",
        "In the lists that each state mined from: passages above a positive, at most K of each positive (STAR,"
        " Eq. 6). A positive that a list does not reach counts every irrelevant passage of it, up to K. The table"
        " names K: the length of the shortest list, or 200 if that is less.",
        errors.training_errors_table,
        charts.training_errors_chart,
    ),
    Figure(
        "geometry",
        "Geometry",
        "The corpus, state by state",
        "A mean cosine near 1 says that all passages point one way. A hub is a passage among the first 10"
        " of many queries.",
        scores.geometry_table,
        charts.geometry_chart,
    ),
    Figure(
        "space",
        "Geometry",
        "Alignment and uniformity",
        "For sampled vectors: how near queries lie to their positives, and how evenly passages cover the sphere;"
        " both are better when smaller (Wang and Isola, 2020). The table has norms and drift, too.",
        vectors.space_table,
        charts.space_chart,
    ),
    Figure(
        "map",
        "Geometry",
        "A map of queries, positives and negatives",
        "t-SNE of sampled training queries, a positive and the three hardest negatives of each, in at most four"
        " states. Only what lies together means something; axes and distances between maps mean nothing.",
        vectors.map_table,
        charts.map_chart,
    ),
    Figure(
        "breakdown",
        "Where it got better or worse",
        "By properties of the query",
        "The mean change from the untrained to the final model (while training runs, or where the untrained model"
        " was kept: to the last one that was measured), with two standard errors to either side. Where"
        " ids begin with the name of a part, such as `numpy` of `numpy.sum`, the parts stand apart: those of the"
        " first positive, and those of the queries' own ids.",
        queries.breakdown_table,
        charts.breakdown_chart,
    ),
    Figure(
        "breakdown_by_source",
        "Where it got better or worse",
        "Training queries by the source of their negatives",
        "The mean change of RR@100 from the first to the last state, by the source of most of a query's negatives"
        " in the pools. If it is the same for all queries, by the share of each source.",
        queries.trained_breakdown_table,
        charts.breakdown_chart,
    ),
    Figure(
        "best_queries",
        "Queries",
        "Queries that rose most",
        "From the untrained to the final model, or to the last one where the untrained model was kept. Ranks are"
        " of the best positive.",
        queries.best_table,
        texts=("text", "positive"),
    ),
    Figure(
        "worst_queries",
        "Queries",
        "Queries that fell most",
        "From the untrained to the final model, or to the last one where the untrained model was kept. Ranks are"
        " of the best positive.",
        queries.worst_table,
        texts=("text", "positive"),
    ),
    Figure(
        "audited",
        "False negatives",
        "What was audited",
        "The negatives of the last pool, each pair of a query and a passage once. Of a pool with more than a"
        " million entries, only queries drawn at random are audited.",
        audit.audited_table,
    ),
    Figure(
        "audit_signals",
        "False negatives",
        "Signals",
        "Negatives of the last pool that are perhaps relevant, by what speaks for it. `hardneg audit EXP --page F`"
        " makes a page to label them, and `train`, `mine` and `evaluate` take the labels.",
        audit.signals_table,
        texts=("meaning",),
    ),
    Figure(
        "audit_sources",
        "False negatives",
        "By source",
        "The share of each source's pairs for which a signal fires.",
        audit.sources_table,
    ),
    Figure(
        "suspects",
        "False negatives",
        "The most suspected",
        "Texts of the negative and of a positive beside one another, the most suspected first.",
        audit.suspects_table,
        texts=("text", "its text", "a positive's text"),
    ),
    Figure(
        "timeline",
        "Time and cost",
        "Timeline",
        "When each stage ran; trainer and inferencer may work at once (ANCE, Section 4).",
        time.timeline_table,
        charts.timeline_chart,
    ),
    Figure(
        "async_gap",
        "Time and cost",
        "Age of the negatives",
        "Steps between the model that mined a negative and the step that uses it (ANCE, Figure 5).",
        time.gap_table,
        charts.gap_chart,
    ),
    Figure(
        "cost",
        "Time and cost",
        "Time by stage",
        "Seconds of all stages; those of two processes may overlap, and one stage may lie inside another."
        " Tokens of `train` are those that steps encode, without padding; the retriever's steps in `ar2` do not"
        " count those that the ranker scores. The first peak of memory is the stage's"
        " own; the second counts from the start of the process.",
        results.cost_table,
        charts.cost_chart,
    ),
    Figure(
        "cost_summary",
        "Time and cost",
        "Cost of the whole",
        "In the terms of the papers (ANCE-Tele, Table 6): training, refreshing of negatives, and both together."
        " But refreshing has all encoding and searching before the last step here, that for measuring states"
        " included. Vectors that were `found ready` in a cache cost nothing."
        " In `ar2`, training, its steps and its tokens are those of both models.",
        results.cost_summary_table,
    ),
    Figure(
        "settings",
        "Settings",
        "All settings",
        "Settings that decide change the results; the others change only how they are computed.",
        results.settings_table,
    ),
)
