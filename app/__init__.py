"""The Gradio app: a view of the engine. One file per tab, one worker thread, `documents`."""
