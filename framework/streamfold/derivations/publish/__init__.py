"""Changes of items as messages to buses, topics and queues, each with one id for ever."""
