"""Tests the cache that keeps documents between verdict and store.

It stays within its size and never returns bytes of another document.
"""

from quorate_coordinator.core.model.effects import StoreReceipt
from quorate_coordinator.core.model.state import DocumentCache
from quorate_coordinator.core.money.receipts import document
from quorate_protocol.codec.cids import document_cid
from support.markets.scripted_market import Market, Party


def test_the_oldest_documents_are_dropped_when_the_cache_is_full() -> None:
    waiting = DocumentCache(bytes_max=10)
    waiting.put("a", b"12345")
    waiting.put("b", b"12345")
    waiting.put("b", b"1234")
    assert waiting.take("a") == b"12345" and waiting.take("a") is None
    waiting.put("c", b"1234567")
    assert waiting.take("b") is None and waiting.take("c") == b"1234567"
    waiting.put("d", b"more than there is room for")
    assert waiting.take("d") is None


def test_cached_receipt_is_the_one_that_would_be_built() -> None:
    market = Market(*(Party(number) for number in range(4)))
    market.until_decided(market.order(0, 1))
    effect = next(item for item in market.chain if isinstance(item, StoreReceipt))
    state, rules = market.core.state, market.core.rules
    kept = document(state, rules, effect)
    assert state.receipts.take(effect.cid) is None, "it was given away"
    made = document(state, rules, effect)
    assert kept is not None and kept == made and document_cid(made) == effect.cid
