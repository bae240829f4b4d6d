"""Spark's RDDs as lists: what a run on Spark does with them, in this process and without Java.

Every value is pickled on its way from one task to another, and tasks are called in another order than the data has.
"""

import pickle
from functools import reduce


class LocalContext:
    """A context of two cores."""

    defaultParallelism = 2  # noqa: N815 - PySpark's name

    def parallelize(self, values, partitions):
        return Rdd([list(values)[number::partitions] for number in range(partitions)])


class Rdd:
    """A list of partitions."""

    def __init__(self, partitions):
        self.partitions = partitions

    def flatMap(self, function):  # noqa: N802 - PySpark's name
        return self.mapPartitions(lambda values: (made for value in values for made in function(value)))

    def mapPartitions(self, function):  # noqa: N802 - PySpark's name
        return self.mapPartitionsWithIndex(lambda _, values: function(values))

    def mapPartitionsWithIndex(self, function):  # noqa: N802 - PySpark's name
        function = pickle.loads(pickle.dumps(function)) if hasattr(function, "__dataclass_fields__") else function
        return Rdd([[*function(number, iter(values))] for number, values in enumerate(self.partitions)])

    def union(self, other):
        return Rdd([*self.partitions, *other.partitions])

    def repartitionAndSortWithinPartitions(self, number, of):  # noqa: N802 - PySpark's name
        shuffled = self._shuffled(number, of)
        return Rdd([sorted(values, key=lambda pair: pair[0]) for values in shuffled.partitions])

    def reduceByKey(self, function, number, partitionFunc):  # noqa: N802, N803 - PySpark's names
        shuffled = self._shuffled(number, partitionFunc)
        return Rdd([_reduced(values, function) for values in shuffled.partitions])

    def collect(self):
        return [value for values in self.partitions for value in values]

    def _shuffled(self, number, of):
        found = [[] for _ in range(number)]
        for values in reversed(self.partitions):
            for pair in pickle.loads(pickle.dumps(values)):
                found[of(pair[0]) % number].append(pair)
        return Rdd(found)


def _reduced(values, function):
    groups = {}
    for key, value in values:
        groups.setdefault(key, []).append(value)
    return [(key, reduce(function, each)) for key, each in groups.items()]
