"""Pictures of the engine at work, drawn from its own objects as SVG."""
