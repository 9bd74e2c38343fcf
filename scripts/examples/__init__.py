"""Programs in `minisgl.lang`, one idea each: `python -m scripts.examples.essay_judge`."""
