"""The components of the page that events change, and which of them change together."""

from dataclasses import dataclass

import gradio as gr
from gradio.blocks import Block

from app.ui.library.drawing import LibraryParts
from app.ui.retrieval_map.panel import WhereParts


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The components that change."""

    session: gr.Textbox
    head: gr.HTML
    banner: gr.HTML
    card: gr.HTML
    stop_reading: gr.Button
    read_on: gr.Button
    drop: gr.File
    library: LibraryParts
    where: WhereParts
    method: gr.Radio
    strip: gr.HTML
    chat: gr.Chatbot
    suggestions: tuple[gr.Button, ...]
    box: gr.Textbox
    variant: gr.Dropdown
    listing: gr.HTML  # of conversations
    about: gr.HTML  # which book to open for the shown one
    editing: gr.HTML  # that the box holds a question that is being changed
    note: gr.HTML  # under the question box: what the model cannot do

    @property
    def of_book(self) -> list[Block]:
        """What opening and reading a book changes."""
        library = [self.drop, self.library.drop, *self.library.of_library]
        return [self.card, self.stop_reading, self.read_on, *library, *self.of_conversation]

    @property
    def of_answer(self) -> list[Block]:
        """What an answer changes while it is written. Few: Gradio makes anew whatever an update leaves out."""
        return [self.strip, self.chat, self.box, self.where.strip]

    @property
    def of_model(self) -> list[Block]:
        """What another model changes."""
        return [self.head, self.banner, self.method, self.variant, self.note]

    @property
    def after_answer(self) -> list[Block]:
        """What is different once it is written, or was refused."""
        return [self.card, self.stop_reading, self.read_on, *self.of_talk]

    @property
    def of_conversation(self) -> list[Block]:
        """What another conversation changes."""
        return [self.chat, self.strip, *self.of_talk]

    @property
    def of_talk(self) -> list[Block]:
        """What stands around the chat."""
        return [*self.suggestions, self.listing, self.about, self.editing, *self.where.all]
