"""Models and tasks as users write them."""

import dgpu

loads = []
unloads = []


@dgpu.model("greeter", memory_mb=100)
def greeter():
    loads.append("greeter")
    return "hello"


@dgpu.model("second")
def second():
    return "second"


@dgpu.model("third")
def third():
    return "third"


@greeter.unload
def drop(model):
    unloads.append(model)


@dgpu.model("broken")
def broken():
    raise RuntimeError("no weights")


@dgpu.task(model="greeter", timeout=60)
def greet(model, name):
    return f"{model} {name}"


@dgpu.task(model="second")
def use_second(model):
    return model


@dgpu.task(model="third")
def use_third(model):
    return model


@dgpu.task(model="broken")
def use_broken(model):
    return model


@dgpu.task(model="undeclared")
def use_undeclared(model):
    return model


@dgpu.task
def square(x, power=2):
    return x**power


@dgpu.task
def fails_at(x, bad):
    if x == bad:
        raise ValueError(f"{x} is bad")
    return x


def counts():
    return [loads, unloads]
