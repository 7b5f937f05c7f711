"""Bearer tokens, with which clients and providers prove over HTTP who they are.

A token is short-lived and signed by a session key or an operator key:
`Authorization: Quorate <account>.<key>.<expires>.<sig>`, where sig is over
H("quorate-http/1", chainId, coordinator, account, key, expires). The server checks in its own state
whether that key may act for that account.
"""

from msgspec import Struct

from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages.envelope import Recover, Sign, check_signature_form
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Signature, UnixSeconds

SCHEME = "Quorate"
TOKEN_SECONDS_MAX = 24 * 3600


class Bearer(Struct, frozen=True):
    """The verified content of a token."""

    account: Address  # for which the key acts
    key: Address  # the key that signed
    expires: UnixSeconds


def _digest(chain_id: int, coordinator: Address, bearer: Bearer) -> Hash32:
    return hash_tuple(
        "quorate-http/1", chain_id, coordinator, bearer.account, bearer.key, bearer.expires
    )


def make_token(bearer: Bearer, chain_id: int, coordinator: Address, sign: Sign) -> str:
    signature = sign(_digest(chain_id, coordinator, bearer))
    return f"{SCHEME} {bearer.account.hex()}.{bearer.key.hex()}.{bearer.expires}.{signature.hex()}"


def read_token(
    header: str, chain_id: int, coordinator: Address, recover: Recover, now: UnixSeconds
) -> Bearer:
    """Checks form, expiry and signature of a header, and returns its content. Raises
    `Refused(BAD_SIGNATURE | EXPIRED | WRONG_SIGNER)`.
    """
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
        raise Refused(Code.WRONG_SIGNER, "authorization: another key signed the token")
    return bearer
