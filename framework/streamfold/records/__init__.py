"""From what Lambda, a pipe or a file hands over to changes of items, and the values in them."""
