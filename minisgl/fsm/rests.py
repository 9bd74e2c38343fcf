"""What is left to match: the heart of the automaton.

A *rest* is a node and the rest after it, down to the end; each is made once and known by a
number.  Matching a character turns a rest into others (Antimirov's partial derivatives, 1996):

    (a|b)*c  --a-->  (a|b)*c            x{0,9}y  --x-->  x{0,8}y

So a counter is a number in a rest, and `.{0,100000}` is as cheap as `.{0,9}`; a rule that holds
itself leaves more rests behind, and so recursion of any depth needs nothing more: the rests after
are the stack.  A set of rests that begin with a character (or are at the end) is a state.

What look-around asks besides is in look_around.py.
"""

from __future__ import annotations

from math import inf

from minisgl.fsm.alphabet import Alphabet
from minisgl.fsm.node_facts import is_zero_width, min_lengths
from minisgl.fsm.nodes import Chars, Choice, Look, Node, Repeat, Rule, Sequence

MAX_RESTS = 20_000  # in one state

END = 0  # the rest where nothing is left
BEYOND = 1  # in a view: too far ahead to matter

Rests = frozenset[int]
Guards = frozenset[tuple[bool, Rests]]  # each: is it negative?, and its state
Before = tuple[Rests, ...]  # the state of each look-behind
NO_GUARDS: Guards = frozenset()


class TooComplexError(ValueError):
    """A pattern whose automaton would outgrow its budget."""


class RestTable:
    """All rests that come up in matching a pattern.

    Args:
        root: the pattern.
        nodes: all of it, each once, those below before those above.

    Attributes:
        alphabet: the classes of characters that the pattern tells apart.
        classes: of each rest the classes it can begin with; 0 unless it begins with `Chars`.
        after: of each rest what comes after its first node.
    """

    def __init__(self, root: Node, nodes: list[Node]) -> None:
        chars = [n for n in nodes if isinstance(n, Chars)]
        distinct = list(dict.fromkeys(n.ranges for n in chars))
        self.alphabet = Alphabet(distinct)
        mask_of = dict(zip(distinct, self.alphabet.masks, strict=True))
        self._mask: dict[Node, int] = {n: mask_of[n.ranges] for n in chars}
        first = {mask: n for n, mask in reversed(self._mask.items())}
        self._same: dict[Node, Node] = {n: first[mask] for n, mask in self._mask.items()}
        self._min_length = min_lengths(nodes, self._mask)
        self._zero_width: dict[Node, bool] = {}
        self._looks: set[Node] = set()  # those that hold a look-around
        self._node: list[Node | None] = [None, None]
        self.after = [END, END]
        self.classes = [0, 0]
        self._number: dict[tuple[Node | Guards, int], int] = {}
        self._repeats: dict[tuple[Node, int, int | None], Repeat] = {}
        self._grouped: dict[Choice, list[tuple[Node, ...]]] = {}
        self._opened: dict[tuple[int, Before], Rests] = {}
        self._views: dict[tuple[int, int], int] = {}
        self.root = self.rest(root, END)

    # ------------------------------------------------------------------ making rests

    def rest(self, node: Node, after: int) -> int:
        """The number of `node` with `after` after it."""
        node = self._same.get(node, node)
        key = (node, after)
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.after)
            self._node.append(node)
            self.after.append(after)
            self.classes.append(self._mask.get(node, 0))  # 0: it isn't `Chars`
        return number

    def _repeat(self, body: Node, low: int, high: int | None) -> Repeat:
        key = (body, low, high)
        known = self._repeats.get(key)
        if known is None:
            known = self._repeats[key] = Repeat(body, low, high)
            self._min_length[known] = low * self._min_length[body] if low else 0
        return known

    # ------------------------------------------------------------------ states

    def start(self) -> tuple[Before, Rests]:
        """What each look-behind has seen before the text begins, and the state there."""
        return (), self.open(self.root)

    def accepts(self, state: Rests) -> bool:
        """Whether the text may end here."""
        return END in state

    # ------------------------------------------------------------------ opening

    def open(self, rest: int, before: Before = ()) -> Rests:
        """The rests that begin with a character, or the end, which `rest` stands for."""
        known = self._opened.get((rest, before))
        if known is None:
            known = self._opened[rest, before] = self._open(rest, before)
        return known

    def _open(self, rest: int, before: Before) -> Rests:
        if rest == END or self.classes[rest]:
            return frozenset((rest,))
        found: set[int] = set()
        # Of the repeats met: how often, by what is repeated, what comes after, and what guards it.
        counted: dict[tuple[Node, int, Guards], list[tuple[int, int]]] = {}
        todo: list[tuple[int, Guards]] = [(rest, NO_GUARDS)]
        seen = set(todo)
        while todo:
            at, guards = todo.pop()
            node, after = self._node[at], self.after[at]
            if at == END or self.classes[at]:
                found.add(self._guarded(at, guards))
                continue
            assert node is not None
            if self._min_length[node] == inf:
                continue
            if isinstance(node, Repeat):
                node = self._flat(node)
                if node.high is not None:
                    ranges = counted.setdefault((node.body, after, guards), [])
                    if any(a <= node.low and node.high <= b for a, b in ranges):
                        continue  # x{0,5} holds all of x{0,4}
                    ranges.append((node.low, node.high))
            for way, more in self._ways(node, after, before):
                if self.classes[way] and not guards and not more:
                    found.add(way)
                    continue
                option = (way, guards | more if more else guards)
                if option not in seen:
                    seen.add(option)
                    todo.append(option)
            if len(seen) + len(found) > MAX_RESTS:
                raise TooComplexError(
                    f"more than {MAX_RESTS} ways to go on from one place of the pattern"
                )
        return frozenset(found)

    def _ways(self, node: Node, after: int, before: Before) -> list[tuple[int, Guards]]:
        """The rests that `node` with `after` after it stands for, and what guards each."""
        match node:
            case Chars():
                return []
            case Sequence(parts):
                return [(self._chain(parts, after), NO_GUARDS)]
            case Choice():
                return [(self._chain(o, after), NO_GUARDS) for o in self._by_first(node)]
            case Rule():
                assert node.body is not None, f"rule {node.name} has no body"
                return [(self.rest(node.body, after), NO_GUARDS)]
            case Repeat(body, low, high):
                if high == 0 or self._min_length[body] == inf:
                    return [(after, NO_GUARDS)]
                if is_zero_width(body, self._zero_width):
                    low, high = min(low, 1), 1  # it holds once or any number of times
                fewer = self._repeat(body, max(low - 1, 0), None if high is None else high - 1)
                once = (self.rest(body, self.rest(fewer, after)), NO_GUARDS)
                return [once] if low else [once, (after, NO_GUARDS)]
            case Look():
                return [(after, guards) for guards in self._open_look(node, before)]

    def _by_first(self, node: Choice) -> list[tuple[Node, ...]]:
        """The options, those that begin alike as one: able|ace|bad is a(?:ble|ce)|bad.

        So that a choice among many words leaves few of them after each letter.
        """
        known = self._grouped.get(node)
        if known is not None:
            return known
        alike: dict[Node, list[tuple[Node, ...]]] = {}
        for option in node.options:
            if self._min_length[option] < inf:
                parts = option.parts if isinstance(option, Sequence) else (option,)
                if parts and isinstance(parts[0], Chars):
                    alike.setdefault(self._same[parts[0]], []).append(parts)
                else:
                    alike[option] = [parts]
        grouped = []
        for first, group in alike.items():
            if len(group) == 1:
                grouped += group
            else:
                tails = Choice(tuple(map(self._tail, group)))
                self._min_length[tails] = min(map(self._min_length.__getitem__, tails.options))
                grouped.append((first, tails))
        self._grouped[node] = grouped
        return grouped

    def _tail(self, parts: tuple[Node, ...]) -> Node:
        """What comes after the first part."""
        if len(parts) == 2:
            return parts[1]
        tail = Sequence(parts[1:])
        self._min_length[tail] = sum(map(self._min_length.__getitem__, tail.parts))
        return tail

    def _flat(self, node: Repeat) -> Repeat:
        """The same without nested counts, where one will do: (x{0,3}){2} is x{0,6}."""
        body, low, high = node.body, node.low, node.high
        while isinstance(body, Repeat) and body.low <= 1 and body not in self._looks:
            low *= body.low
            if high is None or body.high is None:
                high = 0 if 0 in (high, body.high) else None
            else:
                high *= body.high
            body = body.body
        if self._min_length[body] == 0 and body not in self._looks:
            low = 0  # a body that can be empty fills up the count for nothing
        return self._repeat(body, low, high)

    def _guarded(self, rest: int, guards: Guards) -> int:
        """`rest` under `guards`, of which there are none without look-around."""
        assert not guards
        return rest

    def _open_look(self, look: Look, before: Before) -> list[Guards]:
        """The ways in which a look-around holds here: what each still asks of what follows."""
        raise AssertionError("a pattern that looks around has a LookTable")

    def countdown(self, state: Rests, classes: int) -> tuple[int, Rests] | None:
        """How many characters of some classes may still come, and what is left when they have.

        None unless the state is that of x{0,n} and something that doesn't begin with an x.  Until
        the n have come its states are alike in all but how many more may.
        """
        for rest in state:
            repeat, after = self._node[self.after[rest]], self.after[self.after[rest]]
            if (
                self.classes[rest] == classes
                and isinstance(repeat, Repeat)
                and repeat.low == 0
                and repeat.high is not None
                and self._mask.get(repeat.body) == classes
            ):
                last = self.open(after)
                if state - {rest} == last and not any(self.classes[r] & classes for r in last):
                    return repeat.high + 1, last
        return None

    # ------------------------------------------------------------------ equal as far as one sees

    def prune(self, rests: set[int]) -> set[int]:
        """Without those that another one holds: x{0,4} beside x{0,5}, when the same follows."""
        counts: dict[tuple[Node, int], list[tuple[int, int, int]]] = {}
        for rest in rests:
            node = self._node[rest]
            if isinstance(node, Repeat) and node.high is not None:
                key = (node.body, self.after[rest])
                counts.setdefault(key, []).append((node.low, -node.high, rest))
        for same in counts.values():
            most = -1
            for _, minus_high, rest in sorted(same):
                if -minus_high <= most:
                    rests.discard(rest)
                most = max(most, -minus_high)
        return rests

    def view(self, state: Rests, reach: int) -> Rests:
        """The state as far as its next `reach` characters go: equal views, equal masks.

        A counter above `reach` is as good as any other, and so is what lies further ahead.
        """
        return frozenset(self._view(rest, reach) for rest in state)

    def _view(self, rest: int, reach: int) -> int:
        known = self._views.get((rest, reach))
        if known is None:
            nodes, after = self._near(rest, reach)
            known = self._views[rest, reach] = self._chain(nodes, END if after == END else BEYOND)
        return known

    def saturated(self, state: Rests, reach: int) -> Rests:
        """The same as far as its next `reach` characters go, with counts above that let go.

        Only where a count comes next or nearly so: further on there is little to gain.
        """
        return frozenset(self._chain(*self._near(rest, reach, most=3)) for rest in state)

    def _near(self, rest: int, reach: int, most: float = inf) -> tuple[list[Node], int]:
        """The nodes, `most` of them, that the next characters get to, and the rest after them."""
        nodes: list[Node] = []
        left = reach
        while rest != END and left > 0 and len(nodes) < most:
            node = self._node[rest]
            assert node is not None
            if isinstance(node, Repeat) and self._min_length[node.body] >= 1:
                low = min(node.low, left + 1)
                high = None if node.high is None or node.high > left else node.high
                if (low, high) != (node.low, node.high):  # else it stays what it is: the same rest
                    node = self._repeat(node.body, low, high)
            nodes.append(node)
            left -= int(min(self._min_length[node], left))
            rest = self.after[rest]
        return nodes, rest

    def _chain(self, nodes: tuple[Node, ...] | list[Node], after: int) -> int:
        """The rest of these nodes one after the other, with `after` after them."""
        for node in reversed(nodes):
            after = self.rest(node, after)
        return after
