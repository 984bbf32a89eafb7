"""ai.onnx.ml: what scikit-learn, LightGBM, XGBoost and CatBoost are exported to, as kernels."""

from retune.frontend.onnx.ops.ml import features, linear, lookups, svm, trees

__all__ = ["features", "linear", "lookups", "svm", "trees"]
