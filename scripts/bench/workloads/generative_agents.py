"""Generative agents (Park et al. 2023, arXiv 2304.03442): the calls behind simulated people.

Five functions of few tokens each, called in the order in which a simulation called them.  They run
one after another: what somebody does next depends on what was said before.  The prompts are ours.
Data: `generative_agents/agent_calls.jsonl`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import minisgl.lang as sgl
from scripts.bench.workloads.base import Job, Size, Workload, file_of
from scripts.bench.workloads.samples import TOWNS, Town
from scripts.examples.common import read_jsonl

SCALE = """How much an event matters to somebody, from 1 (as ordinary as brushing teeth or making
the bed) to 10 (as grave as a birth or the loss of a friend):
the kettle is boiling -> 1
the neighbour says good morning -> 2
the shop has run out of flour -> 4
the daughter has passed her examination -> 7
the house of the neighbours is on fire -> 9
"""
TRIPLES = """Say who does what with what, as (subject, predicate, object).

Otto is baking bread for the market. -> (Otto, bake, bread)
Ines is reading a letter from her sister. -> (Ines, read, letter)
The oven is being cleaned. -> (oven, be, cleaned)
Mara is talking with the miller about the rain. -> (Mara, talk about, rain)
Ben is asleep. -> (Ben, be, asleep)
"""
EMOJIS = """Write an action as one or two emojis.

sleeping: 😴
reading a book: 📖
baking bread: 🍞
writing a letter: ✍️
talking with a friend: 💬
"""
SECTORS = """Choose where somebody goes to do something. The place must be in the list; somebody who
can stay where he is stays.

Otto is at the bakery. The plan of the day: Bake until noon, then rest at home.
Places: the bakery, the church, Otto's house, the inn
Otto goes for a rest to: {Otto's house}

Ines is at the school. The plan of the day: Teach, then see friends.
Places: the school, the inn, the mill
Ines goes for a drink with friends to: {the inn}

"""
ROOMS = """Choose the room in which somebody does something. It must be in the list.

Otto is at Otto's house. Rooms: kitchen, bedroom, cellar
For sleeping, Otto goes to: {bedroom}

Ines is at the inn. Rooms: taproom, stable
For a drink with friends, Ines goes to: {taproom}

"""


@sgl.function
def poignancy_event(s, persona_name: str, persona_iss: str, event: str):
    s += f"{SCALE}\nAbout {persona_name}:\n{persona_iss}\nFor {persona_name}: {event} ->"
    s += sgl.gen("out", max_tokens=2)


@sgl.function
def generate_event_triple(s, persona_name: str, action: str):
    s += f"{TRIPLES}{persona_name} is {action}. -> ({persona_name},"
    s += sgl.gen("out", max_tokens=20, stop=")")


@sgl.function
def generate_pronunciatio(s, action: str):
    s += f"{EMOJIS}{action}:" + sgl.gen("out", max_tokens=6, stop="\n")


@sgl.function
def action_location_sector(
    s, persona_name, current_sector, sector_options, daily_plan, next_action, **_
):
    s += f"{SECTORS}{persona_name} is at {current_sector}. The plan of the day: "
    s += f"{daily_plan.strip()}\nPlaces: {sector_options}\n"
    s += f"{persona_name} goes for {next_action} to: {{"
    s += sgl.gen("out", max_tokens=10, stop="}")


@sgl.function
def action_location_object(s, persona_name, target_sector, target_sector_areas, next_action, **_):
    s += f"{ROOMS}{persona_name} is at {target_sector}. Rooms: {target_sector_areas}\n"
    s += f"For {next_action}, {persona_name} goes to: {{" + sgl.gen("out", max_tokens=5, stop="}")


PROGRAMS = {
    program.func.__name__: program
    for program in (
        poignancy_event,
        generate_event_triple,
        generate_pronunciatio,
        action_location_sector,
        action_location_object,
    )
}


def jobs(data: Path | None, count: int, scale: float) -> list[Job]:
    if data is None:
        calls = [call for i, _ in enumerate(TOWNS) for call in _calls(i)]
    else:
        calls = read_jsonl(file_of(data, "generative_agents/agent_calls.jsonl"))
    return [
        Job(PROGRAMS[name], arguments) for call in calls[:count] for name, arguments in call.items()
    ]


def _calls(number: int) -> list[dict[str, Any]]:
    """A moment of somebody's life: what a simulation asks about it."""
    here, there = TOWNS[number], TOWNS[(number + 1) % len(TOWNS)]
    name, action = here.mayor, f"writing to {there.mayor} about the fair"
    next_action = f"meeting the makers of {here.trade}"
    places = f"the town hall, the inn, the workshops, {here.sight}"
    return [
        {
            "action_location_sector": {
                "persona_name": name,
                "current_sector": "the town hall",
                "sector_options": places,
                "daily_plan": "Letters in the morning, visits after noon.",
                "next_action": next_action,
            }
        },
        {
            "action_location_object": {
                "persona_name": name,
                "target_sector": "the town hall",
                "target_sector_areas": "office, archive, hall",
                "next_action": action,
            }
        },
        {"generate_pronunciatio": {"action": action}},
        {"generate_event_triple": {"persona_name": name, "action": action}},
        {
            "poignancy_event": {
                "persona_name": name,
                "persona_iss": _about(here),
                "event": f"{there.mayor} has answered from {there.name}",
            }
        },
    ]


def _about(town: Town) -> str:
    return (
        f"{town.mayor} is the mayor of {town.name}, a town of {town.people} people on the "
        f"{town.river}, and worries about the sale of {town.trade}. Up early, in bed by ten."
    )


WORKLOAD = Workload(
    "generative_agents",
    "Generative agents",
    lambda scale: "5 functions, 2 to 20 tokens, one after another",
    jobs,
    lambda state: [state["out"]],
    paper=Size(1000, 1000),
    cpu=Size(50, 50),
    quick=Size(5, 5),
    parallel=1,
)
