"""The public names of hardneg: editors read them here, and ``import hardneg`` loads each when it is used."""

from hardneg.data.collection import Collection as Collection
from hardneg.data.importing import import_collection as import_collection
from hardneg.errors import HardnegError as HardnegError
from hardneg.integrations.following import follow as follow
from hardneg.models.code import allow_code as allow_code
from hardneg.models.loading import load_encoder as load_encoder
from hardneg.negatives.candidates import Filters as Filters
from hardneg.negatives.pool import NegativePool as NegativePool
from hardneg.negatives.pool import load_pool as load_pool
from hardneg.operations.cleaning import clean as clean
from hardneg.operations.doctor import doctor as doctor
from hardneg.operations.evaluation import compare as compare
from hardneg.operations.evaluation import evaluate as evaluate
from hardneg.operations.exporting import export_pool as export_pool
from hardneg.operations.indexing import index as index
from hardneg.operations.inspection import inspect as inspect
from hardneg.operations.inspection import pool_stats as pool_stats
from hardneg.operations.keeping import verify as verify
from hardneg.operations.pools import mine as mine
from hardneg.operations.recipes import plan as plan
from hardneg.operations.recipes import settings_of as settings_of
from hardneg.operations.recipes import train as train
from hardneg.operations.recipes import train_adore as train_adore
from hardneg.operations.recipes import train_ance as train_ance
from hardneg.operations.recipes import train_ance_tele as train_ance_tele
from hardneg.operations.recipes import train_star as train_star
from hardneg.operations.recipes import train_warmup as train_warmup
from hardneg.operations.retrieval import encode as encode
from hardneg.operations.retrieval import search_split as search_split
from hardneg.operations.retrieval import search_text as search_text
from hardneg.operations.starting import Splits as Splits
from hardneg.recipes.ance_tele import AnceTele as AnceTele

__version__: str
