"""Ways to fit, one a file: each is exported here, under the short name that `t3.fit` takes."""

from t3._fit.methods.adam import Adam
from t3._fit.methods.gradient_descent import GradientDescent
from t3._fit.methods.mc_sgd import MCSGD
from t3._fit.methods.method import Look, Method, Step
from t3._fit.methods.newton_cg import NewtonCG

METHODS: dict[str, type[Method]] = {
    "newton_cg": NewtonCG,
    "gradient_descent": GradientDescent,
    "mc_sgd": MCSGD,
    "adam": Adam,
}

__all__ = ["MCSGD", "METHODS", "Adam", "GradientDescent", "Look", "Method", "NewtonCG", "Step"]
