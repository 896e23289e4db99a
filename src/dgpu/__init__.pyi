from dgpu.client.asynchronous import AsyncClient as AsyncClient
from dgpu.client.sync import Client as Client
from dgpu.functions.declare import model as model
from dgpu.functions.declare import task as task
from dgpu.functions.errors import RemoteError as RemoteError
from dgpu.functions.futures import Future as Future
from dgpu.functions.futures import as_completed as as_completed
from dgpu.functions.session import connect as connect
from dgpu.worker.context import Cancelled as Cancelled
from dgpu.worker.context import cancelled as cancelled
from dgpu.worker.context import progress as progress

__version__: str
