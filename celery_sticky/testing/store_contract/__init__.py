"""The contract of stores as tests: a driver's own test file subclasses `StoreContract` and overrides `server`.

class TestMine(StoreContract):
    @pytest.fixture
    def server(self) -> StoreServer[Store]:
        return MyServer()
"""

from celery_sticky.testing.store_contract.documents import DocumentContract
from celery_sticky.testing.store_contract.server import AnyStore, StoreServer, first_view, hear, joined, revived
from celery_sticky.testing.store_contract.signals import FaultContract, SignalContract

__all__ = ["AnyStore", "StoreContract", "StoreServer", "first_view", "hear", "joined", "revived"]


class StoreContract(DocumentContract, SignalContract, FaultContract):
    """The whole contract."""
