"""Twenty prompts as people write them, for the study of code motion: the data first, then the task.

Pieces are numbered as `split` finds them.  `right` is the order that a careful person chooses: what
says the same in every run first, as long as the prompt means the same.  It was set by hand, before
any model was asked.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """A prompt with its arguments in braces, and the right order of its pieces."""

    name: str
    text: str
    right: tuple[int, ...]


TEMPLATES = [
    Template(
        "math tutor",
        "Here is a question: {question}\n"
        "Act as a patient tutor of mathematics for pupils of twelve. "
        "Write down each step on a separate line, and name the rule that allows the step. "
        "Do not skip a step because a pupil could guess the result.\n"
        "Solution:",
        (1, 2, 3, 0, 4),
    ),
    Template(
        "sentiment",
        "Review: {review}\n"
        "Classify the review as positive, negative or mixed. "
        "A review is mixed only if a praise and a complaint are both meant seriously. "
        "Irony counts as a complaint.\n"
        "Class:",
        (1, 2, 3, 0, 4),
    ),
    Template(
        "summary of the above",
        "Article: {article}\n"
        "Summarise the article above in three sentences.\n"
        "Write for readers who know nothing of the subject.\n"
        "Summary:",
        (2, 0, 1, 3),
    ),
    Template(
        "translation",
        "Text: {text}\n"
        "Language: {language}\n"
        "Translate the text into the language given. "
        "Keep names, numbers and code unchanged. "
        "Use the polite form of address where the language has one.\n"
        "Translation:",
        (2, 3, 4, 0, 1, 5),
    ),
    Template(
        "code review",
        "Diff: {diff}\n"
        "Review the diff as a senior engineer would. "
        "Look for errors first, then for names that mislead, then for missing tests. "
        "Quote a line before any remark on a line. "
        "Praise only what is unusual.\n"
        "Remarks:",
        (1, 2, 3, 4, 0, 5),
    ),
    Template(
        "extraction",
        "Letter: {letter}\n"
        "Extract the sender, the date and the sum of money as JSON. "
        "A value that the letter does not give is null. "
        "Dates have the form year-month-day.\n"
        "JSON:",
        (1, 2, 3, 0, 4),
    ),
    Template(
        "two documents",
        "First document: {first}\n"
        "Second document: {second}\n"
        "Compare the documents.\n"
        "List what only one document says, and what both say differently. "
        "Leave out differences of style.\n"
        "Differences:",
        (2, 3, 4, 0, 1, 5),
    ),
    Template(
        "dialogue",
        "The conversation so far: {history}\n"
        "The customer has just said: {message}\n"
        "Answer as a clerk of a small bookshop. "
        "Offer at most two books. "
        "Never promise a date of delivery.\n"
        "Clerk:",
        (2, 3, 4, 0, 1, 5),
    ),
    Template(
        "pronouns",
        "Poem: {poem}\n"
        "Read it twice before you write anything. "
        "Then say which image carries it.\n"
        "Avoid the words beautiful, deep and powerful.\n"
        "Answer:",
        (3, 0, 1, 2, 4),
    ),
    Template(
        "few shots last",
        "Word: {word}\n"
        "Give one rhyme in English.\n"
        "Examples: cat - hat, moon - spoon, light - night.\n"
        "Answer with the rhyme alone.\n"
        "Rhyme:",
        (1, 2, 3, 0, 4),
    ),
    Template(
        "announced",
        "Topic: {topic}\n"
        "Write a quiz of five questions for pupils of fourteen. "
        "Every question has four answers, of which one is right.\n"
        "The pupils have read this text:\n"
        "{text}\n"
        "Mark the right answer with a star.\n"
        "Quiz:",
        (1, 2, 5, 0, 3, 4, 6),
    ),
    Template(
        "persona at the end",
        "Situation: {situation}\n"
        "What should be done first?\n"
        "Speak as a nurse of an emergency ward with twenty years of service. "
        "Use short sentences that a frightened person understands. "
        "Name the number to call before anything else.\n"
        "Advice:",
        (2, 3, 4, 0, 1, 5),
    ),
    Template(
        "SQL",
        "Tables: {schema}\n"
        "Question: {question}\n"
        "Write one query in SQLite that answers the question. "
        "Use only columns that the tables have. "
        "Order the result so that equal inputs give equal outputs. "
        "Add no comments and no explanation.\n"
        "Query:",
        (2, 3, 4, 5, 0, 1, 6),
    ),
    Template(
        "title",
        "Draft: {draft}\n"
        "Find a title of at most eight words.\n"
        "No question marks, no colons, no names of companies.\n"
        "Title:",
        (1, 2, 0, 3),
    ),
    Template(
        "scores",
        "Essay: {essay}\n"
        "Judge the essay on a scale from one to ten.\n"
        "Ten means that a newspaper would print the essay unchanged. "
        "One means that no thought can be found. "
        "Spelling counts for nothing.\n"
        "Score:",
        (1, 2, 3, 4, 0, 5),
    ),
    Template(
        "rewrite",
        "Original: {original}\n"
        "Rewrite the original for children of eight. "
        "Replace every word that a child has to look up. "
        "Keep the order of events.\n"
        "New version:",
        (1, 2, 3, 0, 4),
    ),
    Template(
        "constant in between",
        "Product: {product}\n"
        "Write a text for a catalogue, of sixty words.\n"
        "Audience: {audience}\n"
        "Mention the price once, near the end. "
        "Make no claim that the description does not support.\n"
        "Text:",
        (1, 3, 4, 0, 2, 5),
    ),
    Template(
        "back and forth",
        "Claim: {claim}\n"
        "Give the strongest argument for the claim.\n"
        "Next give the strongest argument against it.\n"
        "Cite no sources that you can't name exactly.\n"
        "Arguments:",
        (1, 3, 0, 2, 4),
    ),
    Template(
        "regular expression",
        "Examples that match: {good}\n"
        "Examples that do not match: {bad}\n"
        "Write a regular expression for Python. "
        "Prefer a short expression to a clever one. "
        "Anchor both ends.\n"
        "Pattern:",
        (2, 3, 4, 0, 1, 5),
    ),
    Template(
        "already first",
        "You are a librarian. "
        "Suggest one novel that fits the wish of a reader, and say why in a sentence.\n"
        "Wish: {wish}\n"
        "Novel:",
        (0, 1, 2, 3),
    ),
]
