"""The small calls that keep simulated people alive: generative agents.

After Park et al. 2023 (arXiv 2304.03442): how much an event matters, what it says about whom, an
emoji for it, and where to go next.  Many calls, few tokens each: a `select` can't name a place
that does not exist, and a pattern can't leave the scale.

    python -m scripts.examples.generative_agents [--data agent_calls.jsonl]
"""

from __future__ import annotations

from collections.abc import Sequence

import minisgl.lang as sgl
from scripts.examples.common import options, read_jsonl

CALLS = [
    {
        "poignancy_event": {
            "persona_name": "Mara Lind",
            "persona_iss": "Mara Lind, 52, keeps the mill of the village and worries about rain.",
            "event": "The river has reached the mill",
        }
    },
    {"generate_event_triple": {"persona_name": "Mara Lind", "action": "carrying flour upstairs"}},
    {"generate_pronunciatio": {"action": "carrying flour upstairs"}},
    {
        "action_location_sector": {
            "persona_name": "Mara Lind",
            "current_sector": "the mill",
            "sector_options": "the mill, the inn, the church",
            "daily_plan": "Grind until noon, then sell flour.",
            "next_action": "asking the neighbours at the inn for help",
        }
    },
    {
        "action_location_object": {
            "persona_name": "Mara Lind",
            "target_sector_areas": "kitchen, taproom",
            "current_action": "asking the neighbours for help",
        }
    },
]


@sgl.function
def poignancy_event(s, persona_name: str, persona_iss: str, event: str):
    s += f"{persona_iss}\n\nOn a scale from 1 (brushing teeth) to 10 (a wedding), how much does "
    s += f"this matter to {persona_name}: {event}?\nAnswer: " + sgl.gen("out", regex="10|[1-9]")


@sgl.function
def generate_event_triple(s, persona_name: str, action: str):
    s += "Say who does what with what.\nOtto is baking bread -> (Otto, bake, bread)\n"
    s += f"Ines is reading -> (Ines, read, book)\n{persona_name} is {action} -> ({persona_name},"
    s += sgl.gen("out", stop=[")", "\n"], max_tokens=20)


@sgl.function
def generate_pronunciatio(s, action: str):
    s += f"An action and one or two emojis for it.\nsleeping: 😴\nreading a book: 📖\n{action}:"
    s += sgl.gen("out", stop="\n", max_tokens=6)


@sgl.function
def action_location_sector(
    s, persona_name, current_sector, sector_options, daily_plan, next_action, **_
):
    s += f"{persona_name} is in {current_sector}. The plan of the day: {daily_plan}\n"
    s += f"The places of the town are: {sector_options}.\nTo be {next_action}, {persona_name} goes "
    s += "to: " + sgl.select("out", sector_options.split(", "))


@sgl.function
def action_location_object(s, persona_name, target_sector_areas, current_action, **_):
    s += f"The rooms are: {target_sector_areas}.\n{persona_name} is {current_action} in the room: "
    s += sgl.select("out", target_sector_areas.split(", "))


PROGRAMS = {
    program.__name__: program
    for program in (
        poignancy_event,
        generate_event_triple,
        generate_pronunciatio,
        action_location_sector,
        action_location_object,
    )
}


def main(argv: Sequence[str] | None = None) -> list[sgl.ProgramState]:
    args = options(__doc__, argv, max_tokens=5)
    calls = read_jsonl(args.data, args.limit) if args.data else CALLS
    states = []
    for call in calls:  # one by one: an agent's next thought depends on its last
        ((name, arguments),) = call.items()
        state = PROGRAMS[name].run(**arguments, temperature=0, max_tokens=args.max_tokens)
        print(f"{name}: {state['out'].strip()}")
        states.append(state)
    return states


if __name__ == "__main__":
    main()
