"""A shop: orders are placed, amended, paid, shipped, cancelled, deleted and placed again; items move between days."""

from dataclasses import dataclass, field
from decimal import Decimal

from tests.workload import Workload, change, key, plain, transact

STEPS = 1120
CUSTOMERS = 40
ITEMS_PER_BATCH = 25  # BatchWriteItem takes 25 (API Reference)
NEXT_STATUS = {"placed": "paid", "paid": "shipped"}
CATALOG = {
    "TEA-100": ("Sencha, 100 g", Decimal("8.9"), Decimal("0.1")),
    "TEA-250": ("Assam, 250 g", Decimal("12.5"), Decimal("0.25")),
    "CUP-01": ("Tasse, weiß", Decimal(6), Decimal("0.312")),
    "CUP-02": ("Cup with a saucer", Decimal("9.75"), Decimal("0.58")),
    "POT-10": ("Teapot, 1 l", Decimal("34.99"), Decimal("1.105")),
    "TIN-07": ("Tin “Kyōto”", Decimal("4.2"), Decimal("0.09")),
    "SPN-03": ("Measuring spoon", Decimal("3.333"), Decimal("0.021")),
    "GFT-50": ("Voucher", Decimal(50), Decimal(0)),
}
NAMES = ("Amara Okafor", "Björn Dahl", "Chidi Eze", "Dana Novák", "Eva Lindqvist", "Farid Haddad", "Grace Kim")
CITIES = (
    ("Lisboa", "1100-048", Decimal("38.7139"), Decimal("-9.1394")),
    ("Uppsala", "753 20", Decimal("59.8586"), Decimal("17.6389")),
    ("Valparaíso", "2340000", Decimal("-33.0472"), Decimal("-71.6127")),
    ("Gent", "9000", Decimal("51.0543"), Decimal("3.7174")),
)
TAGS = ("wholesale", "newsletter", "tea-club", "returns-often", "press")


@dataclass
class Order:
    """What the shop knows of an order: its attributes and those of its items by sku."""

    order_id: str
    head: dict
    items: dict = field(default_factory=dict)

    @property
    def key(self):
        return key(f"ORDER#{self.order_id}", "METADATA")

    def item_key(self, sku):
        return key(f"ORDER#{self.order_id}", f"ITEM#{sku}")

    def total(self):
        return plain(sum((item["price"] * item["quantity"] for item in self.items.values()), Decimal(0)))


class Shop(Workload):
    """The shop's own view of its table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.customers = {}
        self.orders = {}
        self.deleted = []
        self.order_count = 0

    # --- customers

    def open_accounts(self):
        """Writes every customer, in batches: a batch write is no transaction."""
        with self.table.batch_writer() as batch:
            for number in range(1, CUSTOMERS + 1):
                customer_id = f"c-{number:03d}"
                self.customers[customer_id] = self.new_customer(number)
                batch.put_item(Item={**self.customer_key(customer_id), **self.customers[customer_id]})

    def new_customer(self, number):
        name = f"{self.random.choice(NAMES)} {number}"
        return {
            "name": name,
            "email": f"customer{number}@example.com",
            "tags": set(self.random.sample(TAGS, k=2)),
            "address": self.address(),
            "balance": plain(Decimal(self.random.randint(-9999, 9999)).scaleb(-2)),
            "loyalty_number": Decimal(10**37 + self.random.randrange(9 * 10**37)),
            "avatar": self.random.randbytes(24),
            "referrer": None,
            "is_company": number % 5 == 0,
        }

    def address(self):
        city, postcode, north, east = self.random.choice(CITIES)
        street = f"Rua {self.random.randint(1, 99)}"
        return {"street": street, "city": city, "postcode": postcode, "position": [north, east]}

    def customer_key(self, customer_id):
        return key(f"CUSTOMER#{customer_id}", "PROFILE")

    def move_house(self):
        customer_id = self.random.choice(list(self.customers))
        self.table.update_item(**change(self.customer_key(customer_id), address=self.address()))

    def tag_customer(self):
        customer_id = self.random.choice(list(self.customers))
        operation = self.random.choice(("ADD", "DELETE"))
        self.table.update_item(
            Key=self.customer_key(customer_id),
            UpdateExpression=f"{operation} #tags :tags",
            ExpressionAttributeNames={"#tags": "tags"},
            ExpressionAttributeValues={":tags": {self.random.choice(TAGS)}},
        )

    # --- placing and deleting

    def place(self):
        self.order_count += 1
        self.write_order(f"{self.order_count:06d}")

    def place_again(self):
        """Places an order under the number of a deleted one."""
        if self.deleted:
            self.write_order(self.deleted.pop(0))

    def write_order(self, order_id):
        customer_id = self.random.choice(list(self.customers))
        head = {
            "customer_id": customer_id,
            "status": "placed",
            "email": self.customers[customer_id]["email"],
            "at": self.clock.advance(45),
            "channel": self.random.choice(("web", "app", "phone")),
            "is_gift": self.random.random() < 0.2,
        }
        order = Order(order_id, head)
        for sku in self.random.sample(list(CATALOG), k=self.random.randint(1, 4)):
            order.items[sku] = self.new_item(sku)
        head["total"] = order.total()
        puts = [("Put", {"Item": {**order.item_key(sku), **item}}) for sku, item in order.items.items()]
        is_new = {"ConditionExpression": "attribute_not_exists(PK)"}
        transact(self.table, ("Put", {"Item": {**order.key, **head}, **is_new}), *puts)
        self.orders[order_id] = order

    def new_item(self, sku):
        name, price, weight_kg = CATALOG[sku]
        quantity = self.random.randint(1, 5)
        weight = {"weight_kg": plain(weight_kg * quantity)}
        return {"name": name, "price": price, "quantity": quantity, "at": self.clock.text(), **weight}

    def delete(self):
        """Deletes an order with its items: half of them in one transaction, the others in a batch."""
        order = self.any_order()
        keys = [order.key, *(order.item_key(sku) for sku in order.items)]
        if self.random.random() < 0.5:
            transact(self.table, *(("Delete", {"Key": item_key}) for item_key in keys))
        else:
            with self.table.batch_writer() as batch:
                for item_key in keys:
                    batch.delete_item(Key=item_key)
        del self.orders[order.order_id]
        self.deleted.append(order.order_id)

    # --- amending

    def any_order(self, *statuses):
        """An order in one of these states, or any order where there is none."""
        orders = list(self.orders.values())
        return self.random.choice([order for order in orders if order.head["status"] in statuses] or orders)

    def any_item(self):
        order = self.any_order()
        return order, self.random.choice(list(order.items))

    def commit_item(self, order, sku, **values):
        """Writes an amended item together with the order's new total."""
        order.items[sku] |= values
        order.head["total"] = order.total()
        total = ("Update", change(order.key, total=order.head["total"]))
        transact(self.table, ("Update", change(order.item_key(sku), **values)), total)

    def change_quantity(self):
        order, sku = self.any_item()
        quantity = self.random.randint(1, 9)
        self.commit_item(order, sku, quantity=quantity, weight_kg=plain(CATALOG[sku][2] * quantity))

    def change_price(self):
        order, sku = self.any_item()
        factor = self.random.choice((Decimal("0.9"), Decimal("0.75"), Decimal("1.1")))
        self.commit_item(order, sku, price=plain((CATALOG[sku][1] * factor).quantize(Decimal("0.001"))))

    def add_item(self):
        order = self.any_order()
        missing = [sku for sku in CATALOG if sku not in order.items]
        if not missing:
            return
        sku = self.random.choice(missing)
        order.items[sku] = self.new_item(sku)
        order.head["total"] = order.total()
        put = ("Put", {"Item": {**order.item_key(sku), **order.items[sku]}})
        transact(self.table, put, ("Update", change(order.key, total=order.head["total"])))

    def remove_item(self):
        order, sku = self.any_item()
        if len(order.items) == 1:
            return
        del order.items[sku]
        order.head["total"] = order.total()
        delete = ("Delete", {"Key": order.item_key(sku)})
        transact(self.table, delete, ("Update", change(order.key, total=order.head["total"])))

    def move_item_to_another_day(self):
        order, sku = self.any_item()
        order.items[sku]["at"] = self.clock.text(days=self.random.choice((-2, -1, 1, 2)))
        self.table.update_item(**change(order.item_key(sku), at=order.items[sku]["at"]))

    def rewrite_item(self):
        """Puts an item as it is: no change, so no record."""
        order, sku = self.any_item()
        self.table.put_item(Item={**order.item_key(sku), **order.items[sku]})

    # --- states

    def advance(self):
        order = self.any_order()
        self.set_status(order, NEXT_STATUS.get(order.head["status"], order.head["status"]))

    def cancel(self):
        self.set_status(self.any_order("placed", "paid"), "cancelled")

    def set_status(self, order, status):
        """Also where the status is that already: an update that changes nothing makes no record."""
        order.head["status"] = status
        self.table.update_item(**change(order.key, status=status))

    def pay_and_ship(self):
        """Two changes of one item, one right behind the other."""
        order = self.any_order("placed")
        self.set_status(order, "paid")
        self.set_status(order, "shipped")

    def hand_over(self):
        """Gives an order to another customer."""
        order = self.any_order()
        customer_id = self.random.choice(list(self.customers))
        values = {"customer_id": customer_id, "email": self.customers[customer_id]["email"]}
        order.head |= values
        self.table.update_item(**change(order.key, **values))


STEP_WEIGHTS = {
    Shop.place: 16,
    Shop.place_again: 5,
    Shop.delete: 7,
    Shop.change_quantity: 12,
    Shop.change_price: 6,
    Shop.add_item: 7,
    Shop.remove_item: 5,
    Shop.move_item_to_another_day: 7,
    Shop.rewrite_item: 3,
    Shop.advance: 16,
    Shop.pay_and_ship: 5,
    Shop.cancel: 4,
    Shop.hand_over: 4,
    Shop.move_house: 2,
    Shop.tag_customer: 3,
}


def run(table, seed):
    """Opens the accounts and then takes as many steps as ``STEPS`` says."""
    shop = Shop(table, seed)
    shop.open_accounts()
    for _ in range(5):
        shop.place()
    shop.take_steps(STEP_WEIGHTS, STEPS)
