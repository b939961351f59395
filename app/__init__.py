"""The Gradio app: a view of the engine. One folder per feature; see assets/docs/architecture.md."""
