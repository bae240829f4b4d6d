"""What is shipped of orders: lines and shipments come with their orders, before them or days later, and go again. A
shipment is corrected, comes back, or stays behind when its order is deleted.
"""

from tests.workload import change, key
from tests.workload.shop import CATALOG, Order, Shop

STEPS = 420
CUSTOMERS = ("c-001", "c-002", "c-003")
CARRIERS = ("bike", "post", "van")


class Deliveries(Shop):
    """A shop that ships its orders line by line."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.customers = {name: {"email": f"{name}@example.com"} for name in CUSTOMERS}
        self.shipments = {}
        self.shipment_count = 0

    # --- orders

    def write_bare_order(self):
        """Writes an order without a line."""
        self.order_count += 1
        order_id = f"{self.order_count:06d}"
        head = {"customer_id": self.random.choice(CUSTOMERS), "status": "placed", "at": self.clock.advance(45)}
        self.orders[order_id] = order = Order(order_id, head)
        self.table.put_item(Item={**order.key, **head})
        return order

    def write_line(self, order_id, sku):
        item_key = key(f"ORDER#{order_id}", f"ITEM#{sku}")
        self.table.put_item(Item={**item_key, **self.new_item(sku)})

    def place_in_pieces(self):
        """An order, and its lines some minutes behind it."""
        order = self.write_bare_order()
        for sku in self.random.sample(list(CATALOG), k=self.random.randint(1, 4)):
            self.clock.advance(30)
            order.items[sku] = self.new_item(sku)
            self.table.put_item(Item={**order.item_key(sku), **order.items[sku]})

    def place_late(self):
        """Lines and a shipment are there before their order, and the order comes some steps later, or never."""
        order_id = f"{self.order_count + 1:06d}"
        skus = self.random.sample(list(CATALOG), k=2)
        for sku in skus:
            self.clock.advance(30)
            self.write_line(order_id, sku)
        self.write_shipment(order_id, skus[0])
        if self.random.random() < 0.8:
            self.write_bare_order().items = {sku: self.new_item(sku) for sku in skus}
        else:
            self.order_count += 1

    def remove_any_line(self):
        """Removes a line, also the last one of its order."""
        order = self.any_order()
        if order.items:
            sku = self.random.choice(sorted(order.items))
            del order.items[sku]
            self.table.delete_item(Key=order.item_key(sku))

    def any_order(self, *statuses):
        if not self.orders:
            self.place()
        return super().any_order(*statuses)

    def change_line(self):
        """Prices and quantities, of which the state does not depend."""
        order = self.any_order()
        if order.items:
            sku = self.random.choice(sorted(order.items))
            self.table.update_item(**change(order.item_key(sku), quantity=self.random.randint(1, 9)))

    # --- shipments

    def write_shipment(self, order_id, sku):
        self.shipment_count += 1
        number = self.shipment_count
        shipment_key = key(f"ORDER#{order_id}", f"SHIPMENT#{number:06d}")
        self.shipments[number] = shipment_key
        carrier = self.random.choice(CARRIERS)
        self.table.put_item(Item={**shipment_key, "sku": sku, "carrier": carrier, "at": self.clock.advance(30)})

    def ship(self):
        """One line of an order, now and then one that was shipped before."""
        order = self.any_order()
        if order.items:
            self.write_shipment(order.order_id, self.random.choice(sorted(order.items)))

    def ship_all(self):
        """Each line of an order, one right behind the other."""
        order = self.any_order()
        for sku in sorted(order.items):
            self.write_shipment(order.order_id, sku)

    def any_shipment(self):
        return self.random.choice(sorted(self.shipments)) if self.shipments else None

    def correct_shipment(self):
        """Another sku was in the parcel, of the same order or not."""
        if number := self.any_shipment():
            self.table.update_item(**change(self.shipments[number], sku=self.random.choice(sorted(CATALOG))))

    def hand_on(self):
        """A change of a shipment that no row shows."""
        if number := self.any_shipment():
            self.table.update_item(**change(self.shipments[number], carrier=self.random.choice(CARRIERS)))

    def take_back(self):
        """A parcel comes back."""
        if number := self.any_shipment():
            self.table.delete_item(Key=self.shipments.pop(number))


STEP_WEIGHTS = {
    Deliveries.place: 8,
    Deliveries.place_in_pieces: 5,
    Deliveries.place_late: 4,
    Deliveries.place_again: 4,
    Deliveries.delete: 5,
    Deliveries.change_line: 4,
    Deliveries.add_item: 4,
    Deliveries.remove_any_line: 5,
    Deliveries.advance: 2,
    Deliveries.ship: 22,
    Deliveries.ship_all: 6,
    Deliveries.correct_shipment: 6,
    Deliveries.hand_on: 4,
    Deliveries.take_back: 6,
}


def run(table, seed):
    """Takes as many steps as ``STEPS`` says."""
    Deliveries(table, seed).take_steps(STEP_WEIGHTS, STEPS)
