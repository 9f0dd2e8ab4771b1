"""The public names of hardneg: editors read them here, and ``import hardneg`` loads each when it is used."""

from typing import Literal, Unpack, overload

from hardneg.api import keywords
from hardneg.api.audit import audit as audit
from hardneg.api.clean import clean as clean
from hardneg.api.convert import import_negatives as import_negatives
from hardneg.api.diagnose import compare_experiments as compare_experiments
from hardneg.api.diagnose import diagnose as diagnose
from hardneg.api.doctor import doctor as doctor
from hardneg.api.evaluate import compare as compare
from hardneg.api.evaluate import evaluate as evaluate
from hardneg.api.examine import examine as examine
from hardneg.api.export import export_pool as export_pool
from hardneg.api.index import index as index
from hardneg.api.inputs import Data, Place
from hardneg.api.inputs import open_collection as open_collection
from hardneg.api.inspect import inspect as inspect
from hardneg.api.inspect import pool_stats as pool_stats
from hardneg.api.mine import mine as mine
from hardneg.api.outcomes import Results
from hardneg.api.rank import fuse as fuse
from hardneg.api.rank import rerank as rerank
from hardneg.api.recipes import plan as plan
from hardneg.api.recipes import settings_of as settings_of
from hardneg.api.rerankers import open_reranker as open_reranker
from hardneg.api.retrievers import open_retriever as open_retriever
from hardneg.api.score import score as score
from hardneg.api.search import encode as encode
from hardneg.api.search import search_split as search_split
from hardneg.api.search import search_text as search_text
from hardneg.api.searcher import Searcher as Searcher
from hardneg.api.searcher import bm25 as bm25
from hardneg.api.searcher import open_searcher as open_searcher
from hardneg.api.verify import verify as verify
from hardneg.data.checking import check_import as check_import
from hardneg.data.collection import Collection as Collection
from hardneg.data.importing import import_collection as import_collection
from hardneg.data.training_data import Splits as Splits
from hardneg.errors import HardnegError as HardnegError
from hardneg.integrations.follow_metrics import follow as follow
from hardneg.models.code import allow_code as allow_code
from hardneg.models.loading import load_encoder as load_encoder
from hardneg.negatives.candidates import Filters as Filters
from hardneg.negatives.pool import NegativePool as NegativePool
from hardneg.negatives.pool import load_pool as load_pool
from hardneg.recipes.ance_tele import AnceTele as AnceTele
from hardneg.search.embedding_store import Embeddings as Embeddings
from hardneg.search.retriever import Retriever as Retriever
from hardneg.search.runs import load_run as load_run
from hardneg.training.objectives import group_loss as group_loss

__version__: str

# What trains, with the settings of each recipe as keywords; at run time these are hardneg.api.recipes.

@overload
def train(
    recipe: Literal["ance-tele"],
    data: Data,
    model: Place,
    out: Place,
    **options: Unpack[keywords.AnceTeleKeywords],
) -> Results: ...
@overload
def train(
    recipe: Literal["warmup"],
    data: Data,
    model: Place,
    out: Place,
    **options: Unpack[keywords.WarmupKeywords],
) -> Results: ...
@overload
def train(
    recipe: Literal["ance"],
    data: Data,
    model: Place,
    out: Place,
    **options: Unpack[keywords.AnceKeywords],
) -> Results: ...
@overload
def train(
    recipe: Literal["star"],
    data: Data,
    model: Place,
    out: Place,
    **options: Unpack[keywords.StarKeywords],
) -> Results: ...
@overload
def train(
    recipe: Literal["adore"],
    data: Data,
    model: Place,
    out: Place,
    **options: Unpack[keywords.AdoreKeywords],
) -> Results: ...
@overload
def train(
    recipe: Literal["ar2"],
    data: Data,
    model: Place,
    out: Place,
    **options: Unpack[keywords.Ar2Keywords],
) -> Results: ...
@overload
def train(
    recipe: Literal["ranker"],
    data: Data,
    model: Place,
    out: Place,
    **options: Unpack[keywords.RankerTrainingKeywords],
) -> Results: ...
@overload  # a name that is known only when the program runs: the keywords that all recipes take
def train(
    recipe: str,
    data: Data,
    model: Place,
    out: Place,
    *,
    learning_rate: float = ...,
    **options: Unpack[keywords.Keywords],
) -> Results: ...
def train_ance_tele(
    data: Data, model: Place, out: Place, **options: Unpack[keywords.AnceTeleKeywords]
) -> Results: ...
def train_warmup(data: Data, model: Place, out: Place, **options: Unpack[keywords.WarmupKeywords]) -> Results: ...
def train_ance(data: Data, model: Place, out: Place, **options: Unpack[keywords.AnceKeywords]) -> Results: ...
def train_star(data: Data, model: Place, out: Place, **options: Unpack[keywords.StarKeywords]) -> Results: ...
def train_adore(data: Data, model: Place, out: Place, **options: Unpack[keywords.AdoreKeywords]) -> Results: ...
def train_ar2(data: Data, model: Place, out: Place, **options: Unpack[keywords.Ar2Keywords]) -> Results: ...
def train_ranker(
    data: Data, model: Place, out: Place, **options: Unpack[keywords.RankerTrainingKeywords]
) -> Results: ...
