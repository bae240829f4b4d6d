"""A shop whose catalogue moves: products change names, categories and suppliers, are withdrawn and sold again.
Suppliers move and close, and customers change tiers. Orders are placed, amended, handed over and removed all the while.
"""

from decimal import Decimal

from tests.workload import Workload, change, key, plain, transact

STEPS = 210
PRODUCTS = {
    "LAMP-01": ("Desk lamp", "lamps", Decimal("24.9")),
    "LAMP-02": ("Floor lamp", "lamps", Decimal(79)),
    "SHADE-1": ("Paper shade", "lamps", Decimal("12.35")),
    "CHAIR-1": ("Stool", "chairs", Decimal("39.5")),
    "CHAIR-2": ("Armchair", "chairs", Decimal(249)),
    "RUG-010": ("Wool rug", "textiles", Decimal("118.75")),
}
CATEGORIES = ("lamps", "chairs", "textiles", "sale")
SUPPLIERS = ("nord", "sur", "han")
CITIES = ("Uppsala", "Valparaíso", "Gent", "Pune")
TIERS = ("standard", "silver", "gold")
CUSTOMERS = tuple(f"k-{number:02d}" for number in range(1, 7))
STATUSES = ("placed", "paid", "shipped", "cancelled")


class Furniture(Workload):
    """The shop's own view of its table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.products = {}
        self.suppliers = set()
        self.customers = set()
        self.orders = {}  # with their lines, by sku
        self.count = 0

    def any_of(self, things):
        return self.random.choice(sorted(things)) if things else None

    def order_key(self, order_id):
        return key(f"ORDER#{order_id}", "METADATA")

    def line_key(self, order_id, sku):
        return key(f"ORDER#{order_id}", f"ITEM#{sku}")

    def product_key(self, sku):
        return key(f"SKU#{sku}", "PRODUCT")

    def supplier_key(self, supplier_id):
        return key(f"SUPPLIER#{supplier_id}", "PROFILE")

    def customer_key(self, customer_id):
        return key(f"CUSTOMER#{customer_id}", "PROFILE")

    # --- orders

    def line(self, sku):
        """A line has the price of the day, whatever the product costs later."""
        name, _, price = PRODUCTS[sku]
        price = self.products.get(sku, price)
        return {"name": name, "price": price, "quantity": self.random.randint(1, 5), "at": self.clock.text()}

    def place(self):
        """Places an order of products and a customer whose items may come later."""
        self.count += 1
        order_id, at = f"f-{self.count:03d}", self.clock.advance(60)
        lines = {sku: self.line(sku) for sku in self.random.sample(sorted(PRODUCTS), k=self.random.randint(1, 3))}
        self.orders[order_id] = lines
        total = plain(sum(line["price"] * line["quantity"] for line in lines.values()))
        order = {"customer_id": self.random.choice(CUSTOMERS), "status": "placed", "at": at, "total": total}
        puts = [{**self.line_key(order_id, sku), **line} for sku, line in lines.items()]
        transact(self.table, *(("Put", {"Item": item}) for item in ({**self.order_key(order_id), **order}, *puts)))

    def set_status(self):
        if order_id := self.any_of(self.orders):
            self.table.update_item(**change(self.order_key(order_id), status=self.random.choice(STATUSES)))

    def hand_over(self):
        """The reference to the customer moves."""
        if order_id := self.any_of(self.orders):
            self.table.update_item(**change(self.order_key(order_id), customer_id=self.random.choice(CUSTOMERS)))

    def change_quantity(self):
        if order_id := self.any_of(self.orders):
            sku = self.any_of(self.orders[order_id])
            self.table.update_item(**change(self.line_key(order_id, sku), quantity=self.random.randint(1, 9)))

    def remove_order(self):
        if order_id := self.any_of(self.orders):
            lines = self.orders.pop(order_id)
            keys = [self.order_key(order_id), *(self.line_key(order_id, sku) for sku in lines)]
            transact(self.table, *(("Delete", {"Key": each}) for each in keys))

    # --- products and their suppliers

    def add_product(self):
        """Sells a product, for the first time or again; a few have no supplier yet."""
        if sku := self.any_of(PRODUCTS.keys() - self.products.keys()):
            name, category, price = PRODUCTS[sku]
            self.products[sku] = price
            item = {**self.product_key(sku), "name": name, "category": category, "price": price}
            supplier = {"supplier_id": self.random.choice(SUPPLIERS)} if self.random.random() < 0.8 else {}
            self.table.put_item(Item=item | supplier)

    def withdraw(self):
        """Removes a product alone: its lines stay."""
        if len(self.products) > 3:
            sku = self.any_of(self.products)
            del self.products[sku]
            self.table.delete_item(Key=self.product_key(sku))

    def amend_product(self, **values):
        if sku := self.any_of(self.products):
            self.table.update_item(**change(self.product_key(sku), **values))

    def rename(self):
        self.amend_product(name=f"{self.random.choice(('Oak', 'Blue', 'New'))} {self.random.choice(('lamp', 'chair'))}")

    def sort_anew(self):
        self.amend_product(category=self.random.choice(CATEGORIES))

    def buy_elsewhere(self):
        """The reference through the product moves for all of its lines."""
        self.amend_product(supplier_id=self.random.choice(SUPPLIERS))

    def price(self):
        """No line follows: the price was copied."""
        if sku := self.any_of(self.products):
            self.products[sku] = plain(PRODUCTS[sku][2] * self.random.choice((Decimal("0.8"), Decimal("1.2"))))
            self.table.update_item(**change(self.product_key(sku), price=self.products[sku]))

    def change_both(self):
        """A product and a line of it change in one transaction."""
        order_id = self.any_of(self.orders)
        sku = self.any_of(self.orders.get(order_id, {}).keys() & self.products.keys())
        if sku:
            line = change(self.line_key(order_id, sku), quantity=self.random.randint(1, 9))
            product = change(self.product_key(sku), category=self.random.choice(CATEGORIES))
            transact(self.table, ("Update", line), ("Update", product))

    def write_supplier(self):
        """A supplier opens, opens again, or moves."""
        supplier_id = self.random.choice(SUPPLIERS)
        self.suppliers.add(supplier_id)
        self.table.put_item(Item={**self.supplier_key(supplier_id), "city": self.random.choice(CITIES)})

    def close_supplier(self):
        if supplier_id := self.any_of(self.suppliers):
            self.suppliers.remove(supplier_id)
            self.table.delete_item(Key=self.supplier_key(supplier_id))

    # --- customers

    def write_customer(self):
        """A customer opens an account, or gets another tier."""
        customer_id = self.random.choice(CUSTOMERS)
        self.customers.add(customer_id)
        profile = {"email": f"{customer_id}@example.com", "tier": self.random.choice(TIERS)}
        self.table.put_item(Item={**self.customer_key(customer_id), **profile})

    def close_account(self):
        if customer_id := self.any_of(self.customers):
            self.customers.remove(customer_id)
            self.table.delete_item(Key=self.customer_key(customer_id))


STEP_WEIGHTS = {
    Furniture.place: 8,
    Furniture.set_status: 8,
    Furniture.hand_over: 4,
    Furniture.change_quantity: 5,
    Furniture.remove_order: 3,
    Furniture.add_product: 5,
    Furniture.withdraw: 3,
    Furniture.rename: 4,
    Furniture.sort_anew: 4,
    Furniture.buy_elsewhere: 4,
    Furniture.price: 4,
    Furniture.change_both: 4,
    Furniture.write_supplier: 5,
    Furniture.close_supplier: 3,
    Furniture.write_customer: 8,
    Furniture.close_account: 3,
}


def run(table, seed):
    """Places orders before there are products, takes as many steps as ``STEPS`` says, and withdraws a product.

    Some orders and customers are new at the end, so that orders of several tiers are open.
    """
    furniture = Furniture(table, seed)
    for _ in range(3):
        furniture.place()
    furniture.take_steps(STEP_WEIGHTS, STEPS)
    furniture.withdraw()
    for _ in range(5):
        furniture.write_customer()
        furniture.place()
