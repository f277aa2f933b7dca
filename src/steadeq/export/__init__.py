"""Export of models with a fixed-budget solve as one graph, for `torch.export` and ONNX."""

from ._file import OPSET, ExportedModel, Format, export_model, kind_of, read_metadata
from ._program import ExportError

__all__ = ["OPSET", "ExportError", "ExportedModel", "Format", "export_model", "kind_of", "read_metadata"]
