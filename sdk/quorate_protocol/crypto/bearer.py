"""Who speaks over plain HTTP: a short-lived token signed by an account's key (session or
operator key).

`Authorization: Quorate <account>.<key>.<expires>.<sig>`; sig over H("quorate-http/1", chainId,
coordinator, account, key, expires). Whether that key may speak for that account is the server's
question to its own state.
"""

from msgspec import Struct

from quorate_protocol.crypto.hashing import hash_tuple
from quorate_protocol.messages.envelope import Recover, Sign, check_signature_form
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Signature, UnixSeconds

SCHEME = "Quorate"
TOKEN_SECONDS_MAX = 24 * 3600


class Bearer(Struct, frozen=True):
    """The verified content of a token."""

    account: Address
    key: Address
    expires: UnixSeconds


def _digest(chain_id: int, coordinator: Address, bearer: Bearer) -> Hash32:
    return hash_tuple(
        "quorate-http/1", chain_id, coordinator, bearer.account, bearer.key, bearer.expires
    )


def make_token(bearer: Bearer, chain_id: int, coordinator: Address, sign: Sign) -> str:
    """Header value for a key's holder."""
    signature = sign(_digest(chain_id, coordinator, bearer))
    return f"{SCHEME} {bearer.account.hex()}.{bearer.key.hex()}.{bearer.expires}.{signature.hex()}"


def read_token(
    header: str, chain_id: int, coordinator: Address, recover: Recover, now: UnixSeconds
) -> Bearer:
    """Checks form, expiry and signature; `Refused(BAD_SIGNATURE | EXPIRED)`."""
    try:
        scheme, token = header.split(" ")
        account, key, expires, signature = token.split(".")
        bearer = Bearer(
            Address(bytes.fromhex(account)), Address(bytes.fromhex(key)), UnixSeconds(int(expires))
        )
        sig = Signature(bytes.fromhex(signature))
    except ValueError as error:
        raise Refused(Code.BAD_SIGNATURE, "authorization: not a Quorate token") from error
    if scheme != SCHEME or len(bearer.account) != 20 or len(bearer.key) != 20:
        raise Refused(Code.BAD_SIGNATURE, "authorization: not a Quorate token")
    if not now <= bearer.expires <= now + TOKEN_SECONDS_MAX + 60:
        raise Refused(Code.EXPIRED, "authorization: the token has expired or lives too long")
    check_signature_form(sig)
    if recover(_digest(chain_id, coordinator, bearer), sig) != bearer.key:
        raise Refused(Code.WRONG_SIGNER, "authorization: not signed by the key it names")
    return bearer
