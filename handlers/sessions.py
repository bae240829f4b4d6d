"""Sessions: what happened to them, as opposed to what they are. Each change takes effect once.

``on`` is for events that leave no item behind: an expiry, a sign-in to be counted for good.
"""

from collections.abc import Iterator

from streamfold import Add, Change, Key, Put, Router

SESSION = Key("SESSION#{session_id}", "METADATA")
EXPIRED = Key("USER#{user_id}", "EXPIRED#{session_id}")
SIGN_INS = Key("SIGNINS#{day}", "TOTAL")

router = Router()


@router.on(SESSION, events=["REMOVE"], expired=True, into=EXPIRED)
def session_expired(change: Change) -> Iterator[Put]:
    yield Put(EXPIRED, user_id=change.old["user_id"], at=change.at)


@router.on(SESSION, events=["INSERT"], into=SIGN_INS)
def sign_ins(change: Change) -> Iterator[Add]:
    yield Add(SIGN_INS, day=change.new["started"][:10], sign_ins=1)
