"""scikit-learn estimators: ``DL4JClassifier``, ``DL4JRegressor`` and the transformer ``DL4JAutoEncoder``.

::

    from dl4jlegacy.sklearn import DL4JClassifier

    make_pipeline(StandardScaler(), DL4JClassifier((64,), epochs=50, workers=4)).fit(X, y)

Needs scikit-learn (extra ``sklearn``), which no other part of the package imports.
"""

from dl4jlegacy.errors import ConfError, how_to_install

try:
    import sklearn  # noqa: F401  # imported first, so that another missing module is not reported as scikit-learn
except ModuleNotFoundError as exc:
    if exc.name != "sklearn":
        raise
    raise ConfError(
        f"dl4jlegacy.sklearn needs scikit-learn, which is not installed: {how_to_install('sklearn')}"
    ) from exc

from dl4jlegacy.sklearn.estimators import DL4JAutoEncoder, DL4JClassifier, DL4JRegressor
from dl4jlegacy.sklearn.fitted import FittedNetwork

__all__ = ["DL4JAutoEncoder", "DL4JClassifier", "DL4JRegressor", "FittedNetwork"]
