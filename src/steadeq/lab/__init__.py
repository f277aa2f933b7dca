"""The lab: data, recipes, training, evaluation, reports and the command line (the extra `train`)."""
