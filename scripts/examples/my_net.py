"""A network of one's own: for commands, and with its training as a script."""

import flexlegion as fl
from flexlegion.data import load_digits


def model(batch_size: int = 64, width: int = 32) -> fl.Model:
    """Reads a handwritten digit."""
    net = fl.Model(batch_size)
    x = net.input((8, 8, 1), name="image")  # height, width, channel
    x = net.conv2d(x, width, kernel=3, activation="relu", name="conv")
    x = net.pool2d(x, 2, name="pool")
    x = net.dense(net.flatten(x), 512, activation="relu", name="hidden")
    net.softmax(net.dense(x, 10, name="classes"), name="digit")
    return net


def main() -> None:
    """Find the fastest strategy for the processors at hand; train with it."""
    digits = load_digits((8, 8))
    net = model()
    best = fl.tune(net, digits.x, digits.y, optimizer="adam", budget="3s")
    print(best)
    net.compile("adam", metrics=["accuracy"], strategy=best)
    net.fit(digits.x, digits.y, epochs=5)


if __name__ == "__main__":
    main()
