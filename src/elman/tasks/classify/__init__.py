"""Classification and regression of sequences: labelled rows, the classifier, its metrics, the task."""
