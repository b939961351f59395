"""The page's components that events change, grouped by the events that change them together."""

from dataclasses import dataclass

import gradio as gr
from gradio.blocks import Block

from app.ui.library.drawing import LibraryParts
from app.ui.retrieval_map.panel import WhereParts


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The components that events change."""

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
    thinking: gr.Radio
    listing: gr.HTML  # of conversations
    offer: gr.HTML  # of a full model
    about: gr.HTML  # which book to open for the shown conversation
    editing: gr.HTML  # notice that the box holds a question being edited
    told: gr.HTML  # why a question got no answer, above the box and beside the flow of the page
    note: gr.HTML  # under the question box: limits of the model
    samples: tuple[gr.Button, ...] = ()

    @property
    def of_card(self) -> list[Block]:
        """The card of the book and its buttons."""
        return [self.card, self.stop_reading, self.read_on]

    @property
    def of_book(self) -> list[Block]:
        """Changed by opening and reading a book."""
        library = [self.drop, self.library.drop, *self.library.of_library]
        return [*self.of_card, *library, *self.of_conversation, self.told]

    @property
    def of_answer(self) -> list[Block]:
        """Changed by an answer in progress. Few, because Gradio rebuilds each component that an update omits."""
        return [*self.of_followed, self.told]

    @property
    def of_followed(self) -> list[Block]:
        """Changed by an answer that goes on after a reload: what a quick question was told meanwhile stays."""
        return [self.strip, self.chat, self.box, self.where.strip]

    @property
    def of_model(self) -> list[Block]:
        """Changed by another model."""
        return [self.head, self.banner, self.method, self.variant, self.thinking, self.note, *self.samples]

    @property
    def after_answer(self) -> list[Block]:
        """Changed when an answer has ended, or was refused."""
        return [*self.of_card, *self.of_talk]

    @property
    def of_conversation(self) -> list[Block]:
        """Changed by another conversation."""
        return [self.chat, self.strip, *self.of_talk]

    @property
    def of_talk(self) -> list[Block]:
        """The components around the chat."""
        return [*self.suggestions, self.listing, self.offer, self.about, self.editing, *self.where.all]
