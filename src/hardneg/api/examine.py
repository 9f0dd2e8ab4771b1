"""The doctor of data: what stands out in a collection, said in sentences, with advice for training."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from hardneg.api.inputs import Data, Place, collection_of, source_at
from hardneg.arguments import checked
from hardneg.config import read_preset
from hardneg.data.checks import BY_BOUND, bound_told
from hardneg.data.collection import Collection
from hardneg.data.examination import LOOKED_AT, MIXED, UNSPACED, draw, examine_collection, quantiles
from hardneg.data.training_data import choose_splits
from hardneg.models.source import ModelSource
from hardneg.recipes.epochs import steps_of_epochs
from hardneg.records import Side
from hardneg.shown import counted, listed

SIDES: tuple[Side, Side] = ("passage", "query")
FEW = 300  # training queries below which results differ by chance
MANY = 200_000  # from so many passages on, encoding the corpus takes most of the time
OFTEN_CUT = 0.1
MARKED = 0.1  # share of passages with HTML above which they are taken for pages; texts about code have some, too
BEGIN = ("warmup", "finetune")  # the recipe and the preset to begin with
TOKENISED = 1 << 24  # bytes of texts whose tokens are counted, which takes half a minute
FEWEST = 16  # texts whose tokens are counted, however long they are
MANY_PASSES = 20  # from so many passes over the training queries on, fewer steps may do


@checked
def examine(
    data: Data, model: Place | None = None, *, allow_bin: bool = False, cache: Place | None = None
) -> dict[str, Any]:
    """Look at a collection before training: sizes, copies, leaks between splits, lengths, and advice.

    Parameters
    ----------
    model : the model whose tokenizer counts tokens and whose lengths say which texts are cut; None: only words are
        counted.

    Returns
    -------
    The findings by chapter: ``sizes``, ``splits``, ``blank``, ``copies``, ``leaks``, ``lengths`` (in words; in
    characters where no blank divides words), ``markup``, ``language``, ``tokens`` (if there is a model) and
    ``training`` (if there are queries to train on). ``said``: the same in sentences; ``advice``: what to do, in
    sentences.

    Raises
    ------
    InputError : the data cannot be read.
    """
    collection = collection_of(data, cache)
    facts = examine_collection(collection)
    if model is not None:
        facts["tokens"] = token_facts(collection, source_at(model, allow_bin=allow_bin))
    if any((trainable := trainable_queries(facts)).values()):
        facts["training"] = training_facts(collection, trainable)
    place = data.path if isinstance(data, Collection) else data
    options = f"--data {shlex.quote(str(place))}", f"--model {'M' if model is None else shlex.quote(str(model))}"
    return {**facts, "said": list(sentences(facts)), "advice": list(advice(facts, *options))}


def token_facts(collection: Collection, source: ModelSource) -> dict[str, Any]:
    """Tokens of passages and queries, estimated from a sample, and the share that the model's own lengths cut."""
    from hardneg.data.tokens import joined_passages, plain_tokenizer
    from hardneg.models.lengths import lengths_of
    from hardneg.models.loading import open_encoder

    encoder = open_encoder(source.tokenizing, chunks=1)
    found = {}
    for side, length in zip(SIDES, lengths_of(encoder, encoder.settings), strict=True):
        n = collection.n_passages if side == "passage" else collection.n_queries
        if n:
            column = collection.texts if side == "passage" else collection.query_texts
            most = sample_size(n, int(column.offsets[-1]))
            rows = draw(n, most)
            if side == "passage":
                texts = joined_passages(collection.titles.take(rows), collection.texts.take(rows), " ")
            else:
                texts = collection.query_texts.take(rows)
            counts = [len(one) for one in plain_tokenizer(length.tokenizer).encode_batch_fast(texts)]
            cut = length.sample_cut(collection, most)
            found[cut.plural] = {**quantiles(counts), **cut.as_json(), "told": str(cut)}
    return found


def sample_size(n: int, size: int) -> int:
    """The number of texts to tokenise, of ``n`` texts of ``size`` bytes together: fewer if they are long."""
    return max(FEWEST, min(LOOKED_AT, TOKENISED * n // max(size, 1)))


def trainable_queries(facts: Mapping[str, Any]) -> dict[str, int]:
    """The number of queries with a positive, by split."""
    return {name: split["queries"] - split["without_positives"] for name, split in facts["splits"].items()}


def training_facts(collection: Collection, trainable: Mapping[str, int]) -> dict[str, Any]:
    """What the preset to begin with would train on, and for how many steps.

    The recipe itself would load torch, so the number of steps is computed here; ``test_examine`` compares the two.

    Returns
    -------
    ``split``, ``queries`` that are trained on, those ``held_out`` as dev, ``steps``, ``queries_per_step`` and
    ``passes`` over the queries.
    """
    split = "train" if trainable.get("train") else max(trainable, key=lambda name: trainable[name])
    preset = read_preset(*BEGIN)
    data = choose_splits(collection, train=split, dev_queries=preset["dev_queries"])
    queries = len(data.train)
    batch = int(preset["queries_per_step"])
    steps = steps_of_epochs(preset["epochs"], queries, batch)
    steps = min(max(steps, preset["min_steps"]), preset["max_steps"])
    sizes = {"queries": queries, "held_out": data.held_out, "steps": steps, "queries_per_step": batch}
    return {"split": split, **sizes, "passes": steps / math.ceil(queries / batch)}


# ---------------------------------------------------------------- sentences


def sentences(facts: Mapping[str, Any]) -> Iterator[str]:
    """Everything that was found, a sentence each."""
    sizes = facts["sizes"]
    yield f"The collection has {counted(sizes['passages'], 'passage')} and {counted(sizes['queries'], 'query')}."
    for name, split in facts["splits"].items():
        lacking = split["without_positives"]
        queries, positives = counted(split["queries"], "query"), counted(split["positives"], "positive")
        none = (
            f"{counted(lacking, 'query')} {'has' if lacking == 1 else 'have'} none"
            if lacking
            else "every query has one"
        )
        yield f"Split '{name}' has {queries} and {positives}; {none}."
        by_number = ", ".join(
            f"{n} ({counted(count, 'query')})" for n, count in split["queries_by_positives"].items()
        )
        yield f"Positives per query in '{name}': {by_number}."
    yield from copies_said(facts["copies"])
    for leak in facts["leaks"]:
        yield leak_said(leak)
    unit = "character" if facts["language"]["looks_like"] in UNSPACED else "word"
    for name, length in facts["lengths"].items():
        yield f"{name.capitalize()}: median {counted(length['median'], unit)}, 95th percentile {length['p95']:,}."
    for name, tokens in facts.get("tokens", {}).items():
        yield (
            f"{name.capitalize()} in tokens of this model: median {tokens['median']:,}, 95th percentile "
            f"{tokens['p95']:,}; {tokens['told'].partition(': ')[2]}."
        )
    if found := facts["language"]["looks_like"]:
        found = found if found == MIXED else found.capitalize()
        analysed = facts["language"]["of_the_collection"].capitalize()
        yield f"The passages look like {found}; BM25 analyses them as {analysed}."


def copies_said(copies: Mapping[str, int]) -> Iterator[str]:
    """Sentences about passages and queries that are there more than once."""
    equal, near = copies["passages_equal"], copies["passages_nearly_equal"]
    yield f"{counted(equal, 'duplicate passage')} (ignoring whitespace)."
    if retitled := copies["passages_under_another_title"]:
        repeat = "repeats" if retitled == 1 else "repeat"
        yield f"{counted(retitled, 'passage')} {repeat} a text under another title."
    have = "has a near-duplicate" if near == 1 else "have near-duplicates"
    yield f"Of {counted(copies['passages_compared'], 'passage')} compared, {near:,} {have} (MinHash, 80 % alike)."
    if copies["queries_compared"]:
        equal = copies["queries_equal"]
        same = "is a duplicate" if equal == 1 else "are duplicates"
        yield (
            f"Of {counted(copies['queries_compared'], 'query')} compared, {equal:,} {same} "
            "(ignoring case and punctuation)."
        )


def leak_said(leak: Mapping[str, Any]) -> str:
    """A sentence about what two splits share."""
    one, other = leak["splits"]
    drawn = "" if leak["of_all"] else f" (of {leak['compared_with']:,} that were drawn)"
    equal, near, texts = leak["queries_equal"], leak["queries_nearly_equal"], leak["positives_equal"]
    found = [f"{equal:,} {'is' if equal == 1 else 'are'} also in '{one}'{drawn}"] if equal else []
    nearly = "is a near-duplicate" if near == 1 else "are near-duplicates"
    found += [f"{near:,} {nearly} of one in '{one}'{drawn}"] if near else []
    queries = " and ".join(found) or f"none is also in '{one}'{drawn}"
    shared = f"{texts:,} are positives" if texts > 1 else f"{texts or 'none'} is a positive"
    return (
        f"Of {counted(leak['queries'], 'query')} of '{other}', {queries}; of its"
        f" {counted(leak['positives'], 'text')} of positives, {shared} in '{one}', too."
    )


# ---------------------------------------------------------------- advice


def advice(facts: Mapping[str, Any], data: str, model: str) -> Iterator[str]:
    """What to do before training, and how to begin, a sentence each; ``data``, ``model``: the options of both."""
    if by_bound := facts["sizes"].get(BY_BOUND):
        told = bound_told(by_bound, sum(split["judgements"] for split in facts["splits"].values()))
        yield f"{told[0].upper()}{told[1:]}."
    yield from text_advice(facts)
    yield from language_advice(facts["language"])
    yield from leak_advice(facts)
    yield from length_advice(facts)
    if not facts["sizes"]["queries"]:
        yield "This is a corpus alone: encode, index and search it. Training needs queries with positives."
        return
    trainable = trainable_queries(facts)
    if not any(trainable.values()):
        yield "No query has a positive, so nothing can be trained or measured: check the judgements."
        return
    yield from split_advice(facts, trainable)
    yield from recipe_advice(facts, data, model)


def text_advice(facts: Mapping[str, Any]) -> Iterator[str]:
    """Advice about texts that are blank, and about markup in passages."""
    blank = facts["blank"]
    passages, queries = blank["positives"] or blank["passages"], blank["queries"]
    are = "is a positive" if passages == 1 else "are positives"
    found = [counted(queries, "query")] if queries else []
    found += [f"{counted(passages, 'passage')}{f' that {are}' * bool(blank['positives'])}"] if passages else []
    if found:
        one = queries + passages == 1
        yield f"{' and '.join(found)} {'is' if one else 'are'} blank: remove {'it' if one else 'them'}."
    if (share := facts["markup"]["share"]) > MARKED:
        marks = f"tags or entities of HTML (such as {listed(facts['markup']['such_as'])})"
        yield f"{100 * share:.0f} % of the passages hold {marks}: strip them before the import."


def language_advice(language: Mapping[str, str]) -> Iterator[str]:
    """Advice to import the collection in another language."""
    found = language["looks_like"]
    if found not in ("", MIXED, language["of_the_collection"]):
        yield f"Import it with `hardneg import --language {found}`, so that BM25 finds the words of this language."


def leak_advice(facts: Mapping[str, Any]) -> Iterator[str]:
    """Advice about queries that two splits share, and about duplicates."""
    for leak in facts["leaks"]:
        both = leak["queries_equal"] + leak["queries_nearly_equal"]
        if both:
            one, other = leak["splits"]
            are = "is" if both == 1 else "are"
            example = textwrap.shorten(leak["example"], 80, placeholder=" …")
            yield (
                f"{counted(both, 'query')} of '{other}' {are} also in '{one}', or nearly so, such as {example!r}: "
                f"remove them from one of the two, or results on '{other}' are too good."
            )
    copies = facts["copies"]
    if (equal := copies["passages_equal"]) > 0.01 * facts["sizes"]["passages"]:
        share = 100 * equal / facts["sizes"]["passages"]
        yield (
            f"{share:.0f} % of the passages are duplicates. Duplicates of a positive are never its negatives "
            "here, but they take places in result lists and time to encode: remove them if they mean nothing."
        )
    if copies["passages_nearly_equal"] > 0.01 * copies["passages_compared"]:
        share = 100 * copies["passages_nearly_equal"] / copies["passages_compared"]
        yield (
            f"{share:.0f} % of the passages have near-duplicates. Near-duplicates of positives are false "
            "negatives. In `warmup`, --set guide_mask=true --set guide_margin=0.05 masks them. `star`, `ance` and "
            "`ance-tele` with --preset finetune leave them out when they mine (relative_margin = 0.05); `hardneg "
            "audit` shows what is left."
        )


def length_advice(facts: Mapping[str, Any]) -> Iterator[str]:
    """Advice about passages that are no texts, and about texts that the model cuts."""
    lengths = facts["lengths"]
    if "queries" in lengths and lengths["passages"]["median"] == 1:
        yield (
            "Most passages are one word. If these are ids of documents, call their column `document_id`, and put "
            "the documents (id, text) into the same folder."
        )
    for name, tokens in facts.get("tokens", {}).items():
        if tokens["share"] > OFTEN_CUT and name == "passages":
            yield (
                f"The model reads the first {tokens['tokens']:,} tokens of a passage, and "
                f"{100 * tokens['share']:.0f} % of the passages are longer. Split them before the import, or let "
                "the model read them in up to four chunks: --set chunks=4 --set dev_passages=none."
            )
        elif tokens["share"] > OFTEN_CUT:
            yield f"The model cuts {100 * tokens['share']:.0f} % of the queries: are they whole documents?"


def split_advice(facts: Mapping[str, Any], trainable: Mapping[str, int]) -> Iterator[str]:
    """Advice about splits that are missing, and about queries without positives."""
    names = set(trainable)
    if "train" not in names:
        yield f"There is no split 'train': name the one to train on by --train, of {', '.join(sorted(names))}."
    if not names & {"dev", "dev.small", "validation", "valid", "val"}:
        most = read_preset(*BEGIN)["dev_queries"]
        yield f"There is no dev split: a tenth of the training queries, at most {most}, will be held out."
    if "test" not in names:
        yield "There is no test split: nothing will be measured on test."
    for name, split in facts["splits"].items():
        if split["without_positives"]:
            lacking = split["without_positives"]
            has, is_not = ("has", "it is") if lacking == 1 else ("have", "they are")
            yield f"{counted(lacking, 'query')} of '{name}' {has} no positive: {is_not} left out."


def beginning(training: Mapping[str, Any], data: str, model: str) -> str:
    """Advice on the recipe to begin with, and what it does to this collection."""
    recipe, preset = BEGIN
    split = "" if training["split"] == "train" else f" --train {training['split']}"
    passes = f"{training['passes']:.2g}" if training["passes"] < 10 else f"{training['passes']:,.0f}"
    of = f"of {counted(min(training['queries_per_step'], training['queries']), 'query')}"
    rest = f" (and {training['held_out']:,} held out as dev)" if training["held_out"] else ""
    fewer = (
        ". These are many passes: fewer may do, such as --epochs 10, which ignores the preset's min_steps"
        if training["passes"] > MANY_PASSES
        else ""
    )
    return (
        f"Begin with `hardneg train {recipe} --preset {preset}{split} {data} {model} --out exp`: "
        f"{counted(training['steps'], 'step')} {of}, {passes} passes over "
        f"{counted(training['queries'], 'training query')}{rest}{fewer}. When dev no longer rises, continue from "
        f"its model with `hardneg train star --preset {preset}{split} {data} --model exp --out exp-star`, which "
        "mines."
    )


def answers_advice(language: Mapping[str, str]) -> str:
    """Advice on training with answers."""
    advised = "with --set labels=answers no passage that has an answer is a negative."
    if language["looks_like"] not in UNSPACED:
        return f"The queries have answers: {advised}"
    return (
        f"The queries have answers: {advised} Add --set answer_mode=regex, for no blank divides the words of "
        f"{language['looks_like'].capitalize()}, and an answer is else found only where it stands alone."
    )


def recipe_advice(facts: Mapping[str, Any], data: str, model: str) -> Iterator[str]:
    """Advice on the recipe to begin with, its steps, and the time that it takes."""
    queries = facts["training"]["queries"]
    if facts["sizes"]["passages"] == 1:
        yield "There is a single passage, so no query has a negative: give texts that answer other questions, too."
        return
    if queries < FEW:
        yield (
            f"There is little to train on ({counted(queries, 'training query')}): results may differ by chance. "
            "Compare with BM25 and with the untrained model, and train with several --seeds."
        )
    yield beginning(facts["training"], data, model)
    if facts["sizes"]["answers"]:
        yield answers_advice(facts["language"])
    if facts["sizes"]["passages"] > MANY:
        yield (
            "Encoding the corpus is what takes long here: use a GPU, and ask --estimate for the time before you "
            "train a recipe that mines."
        )
