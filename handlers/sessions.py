"""Sessions and their carts: what happened to them, and what goes with a session that ends or expires.

``on`` is for events that leave no item behind: an expiry, a sign-in to be counted for good.
"""

from streamfold import Add, Change, Count, Item, Key, Put, Router, Row, Sum

SESSION = Key("SESSION#{session_id}", "METADATA")
CART_LINE = Key("SESSION#{session_id}", "LINE#{sku}")
CART = Key("SESSION#{session_id}", "CART")
EXPIRED = Key("USER#{user_id}", "EXPIRED#{session_id}")
SIGN_INS = Key("SIGNINS#{day}", "TOTAL")

router = Router()
router.cascade(SESSION, children=[CART_LINE], name="cart_lines")  # time to live removes a session alone
router.archive(SESSION, to="s3://ended-sessions/shop", name="ended_sessions")  # or as STREAMFOLD_ARCHIVE says


@router.view(CART_LINE, into=CART)
def cart(line: Item) -> Row:
    return Row(total=Sum(line["price"] * line["quantity"]), lines=Count())


@router.on(SESSION, events=["REMOVE"], expired=True, into=EXPIRED)
def session_expired(change: Change) -> Put:
    return Put(EXPIRED, user_id=change.old["user_id"], at=change.at)


@router.on(SESSION, events=["INSERT"], into=SIGN_INS)
def sign_ins(change: Change) -> Add:
    return Add(SIGN_INS, day=change.new["started"][:10], sign_ins=1)
