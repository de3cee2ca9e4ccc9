"""The events of an auction house. Event n is a function of n alone, so any number of subtasks make the same stream.

Of every 50 events one is a new person, three are new auctions and 46 are bids. Some sellers, auctions and bidders are
hot: most auctions are of the current hot seller, every second bid is for the hot auction. Event time advances by 25 ms
with each event; each event is up to `DISORDER_MS` older than its place in the stream.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

START_MS = 1_750_000_000_000
"""The event time of the first event, roughly."""

STEP_MS = 25
"""Event time between two events."""

DISORDER_MS = 2_000
"""An event is at most this much older than its place in the stream."""

FIRST_ID = 1_000
"""The first id of persons and of auctions."""

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
"""The states of persons."""

CATEGORIES = 5
"""The number of categories, which begin with 10."""

_CYCLE = 50  # events: a person, then three auctions, then bids
_AUCTIONS = 3
_HOT = 100  # one of so many persons, or auctions, is hot
_CITIES = ("Alder", "Birch Ford", "Cedar Mill", "Dun Weir", "Elm Lock", "Fern Sluice", "Grey Bank")
_FIRST_NAMES = ("Ada", "Bo", "Cleo", "Dov", "Eva", "Finn", "Gus", "Hana", "Ivo", "June")
_LAST_NAMES = ("Brook", "Dyke", "Ferry", "Mills", "Pool", "Rivers", "Wells")
_THINGS = ("anchor", "barrel", "compass", "lantern", "oar", "rope", "sail", "water wheel")
_WORDS = ("old", "mended", "large", "of oak", "painted blue", "with brass parts", "from the lock house", "never used")
_MASK = 2**64 - 1


class Person(NamedTuple):
    """A person registers."""

    id: int
    name: str
    email: str
    city: str
    state: str
    at: int  # milliseconds since 1970


class Auction(NamedTuple):
    """A person offers a thing."""

    id: int
    item: str
    description: str
    initial_bid: int  # cents
    reserve: int  # cents
    at: int
    expires: int
    seller: int
    category: int


class Bid(NamedTuple):
    """A person bids in an auction."""

    auction: int
    bidder: int
    price: int  # cents
    at: int
    note: str  # up to some hundred bytes


Event: TypeAlias = Person | Auction | Bid
"""An event of the stream."""


class _Dice:
    """Pseudo-random numbers from the event's number alone, the same on any machine (splitmix64)."""

    __slots__ = ("_state",)

    def __init__(self, n: int) -> None:
        self._state = n * 0xD1342543DE82EF95 & _MASK

    def below(self, limit: int) -> int:
        self._state = z = self._state + 0x9E3779B97F4A7C15 & _MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
        return (z ^ z >> 31) % limit

    def one_of(self, choices: tuple[str, ...]) -> str:
        return choices[self.below(len(choices))]


def event(n: int) -> Event:
    """Return the n-th event, counted from 0.

    >>> [type(event(n)).__name__ for n in range(6)]
    ['Person', 'Auction', 'Auction', 'Auction', 'Bid', 'Bid']
    >>> event(7) == event(7), event(7).auction
    (True, 1000)
    """
    dice = _Dice(n)
    cycle, place = divmod(n, _CYCLE)
    at = START_MS + STEP_MS * n - dice.below(DISORDER_MS + 1)
    newest_person = FIRST_ID + cycle
    if place == 0:
        return _person(dice, newest_person, at)
    if place <= _AUCTIONS:
        return _auction(dice, FIRST_ID + _AUCTIONS * cycle + place - 1, newest_person, at)
    return _bid(dice, FIRST_ID + _AUCTIONS * cycle + _AUCTIONS - 1, newest_person, at)


def events(count: int) -> list[Event]:
    """Return the first events.

    >>> kinds = [type(one) for one in events(500)]
    >>> kinds.count(Person), kinds.count(Auction), kinds.count(Bid)
    (10, 30, 460)
    """
    return list(map(event, range(count)))


def _person(dice: _Dice, person: int, at: int) -> Person:
    first, last = dice.one_of(_FIRST_NAMES), dice.one_of(_LAST_NAMES)
    email = f"{first}.{last}.{person}@example.org".lower()
    return Person(person, f"{first} {last}", email, dice.one_of(_CITIES), dice.one_of(STATES), at)


def _auction(dice: _Dice, auction: int, newest_person: int, at: int) -> Auction:
    # Three of four are of the hot seller, the others of a recent person, perhaps the newest.
    seller = _hot(newest_person) if dice.below(4) else _recent(dice, newest_person, 50)
    item = dice.one_of(_THINGS)
    description = ", ".join([item, *(dice.one_of(_WORDS) for _ in range(1 + dice.below(8)))])
    initial = 100 + dice.below(10_000)
    expires = at + 500 + dice.below(20_000)
    return Auction(
        auction, item, description, initial, 2 * initial, at, expires, seller, 10 + dice.below(CATEGORIES)
    )  # fmt: skip


def _bid(dice: _Dice, newest_auction: int, newest_person: int, at: int) -> Bid:
    auction = _hot(newest_auction) if dice.below(2) else _recent(dice, newest_auction, 100)
    bidder = _hot(newest_person) + 1 if dice.below(4) else _recent(dice, newest_person, 1_000)
    price = 100 * 10 ** dice.below(4) + dice.below(1_000)
    # One in sixteen has a long note: records have very different sizes.
    note = dice.one_of(_WORDS) * (1 if dice.below(16) else 1 + dice.below(40))
    return Bid(auction, bidder, price, at, note)


def _hot(newest: int) -> int:
    """Return the hot one of its hundred."""
    return newest // _HOT * _HOT


def _recent(dice: _Dice, newest: int, how_many: int) -> int:
    return newest - dice.below(min(how_many, newest - FIRST_ID + 1))
