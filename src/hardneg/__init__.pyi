"""The public names of hardneg: editors read them here, and ``import hardneg`` loads each when it is used."""

from hardneg.api.audit import audit as audit
from hardneg.api.clean import clean as clean
from hardneg.api.diagnose import compare_experiments as compare_experiments
from hardneg.api.diagnose import diagnose as diagnose
from hardneg.api.doctor import doctor as doctor
from hardneg.api.evaluate import compare as compare
from hardneg.api.evaluate import evaluate as evaluate
from hardneg.api.export import export_pool as export_pool
from hardneg.api.index import index as index
from hardneg.api.inspect import inspect as inspect
from hardneg.api.inspect import pool_stats as pool_stats
from hardneg.api.mine import mine as mine
from hardneg.api.rank import fuse as fuse
from hardneg.api.rank import rerank as rerank
from hardneg.api.recipes import plan as plan
from hardneg.api.recipes import settings_of as settings_of
from hardneg.api.recipes import train as train
from hardneg.api.recipes import train_adore as train_adore
from hardneg.api.recipes import train_ance as train_ance
from hardneg.api.recipes import train_ance_tele as train_ance_tele
from hardneg.api.recipes import train_ar2 as train_ar2
from hardneg.api.recipes import train_ranker as train_ranker
from hardneg.api.recipes import train_star as train_star
from hardneg.api.recipes import train_warmup as train_warmup
from hardneg.api.rerankers import open_reranker as open_reranker
from hardneg.api.retrievers import open_retriever as open_retriever
from hardneg.api.score import score as score
from hardneg.api.search import encode as encode
from hardneg.api.search import search_split as search_split
from hardneg.api.search import search_text as search_text
from hardneg.api.verify import verify as verify
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
from hardneg.search.retriever import Retriever as Retriever
from hardneg.training.objectives import group_loss as group_loss

__version__: str
