"""A user's model: two inputs, one of them looked up in a table."""

import flexlegion as fl


def model(batch_size: int = 16, hidden: int = 32) -> fl.Model:
    """Ratings."""
    net = fl.Model(batch_size)
    words = net.input((6,), "int32", name="words")
    numbers = net.input((3,), name="numbers")
    x = net.concat([net.flatten(net.embedding(words, 50, 4)), numbers], axis=1)
    x = net.dense(x, hidden, activation="relu", name="body")
    net.dense(x, 1, name="rating")
    net.loss = "mean_squared_error"
    return net


def deep(batch_size: int = 16) -> fl.Model:
    """Of so many operators that no search is over soon."""
    net = fl.Model(batch_size)
    x = net.input((6,), name="numbers")
    for i in range(20):
        x = net.dense(x, 32, activation="relu", name=f"body{i}")
    net.dense(x, 1, name="rating")
    net.loss = "mean_squared_error"
    return net


@fl.register_strategy("both-ends")
def both_ends(graph, devices):
    """One half of the operators on the first device, the other on the last."""
    half = len(graph.operators) / 2
    ends = devices.names[0], devices.names[-1]
    return {
        operator.name: fl.ParallelConfig((1,) * len(operator.dims), (ends[number >= half],))
        for number, operator in enumerate(graph.operators)
    }
