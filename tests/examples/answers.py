"""The right answers of the examples, computed by simple plain Python over the whole input."""

from collections import Counter, defaultdict
from itertools import pairwise

from headgate.examples.click_sessions import GAP, Session
from headgate.examples.fraud_timers import LARGE, SMALL, WITHIN, Alert
from headgate.examples.nexmark.generator import Auction, Bid, Person, events
from headgate.examples.streaming_join import WINDOW, Hit

MINUTE = 60_000
SLIDE = 10_000


def grouped(values, key):
    groups = defaultdict(list)
    for value in values:
        groups[key(value)].append(value)
    return groups


def word_counts(lines):
    letters = "".join(char if char.isalpha() else " " for char in "\n".join(lines).lower())
    return dict(Counter(letters.split()))


def click_sessions(clicks):
    sessions = []
    for user, own in grouped(clicks, lambda click: click.user).items():
        own.sort(key=lambda click: click.at)
        groups = [[own[0]]]
        for before, click in pairwise(own):
            if click.at - before.at <= GAP:  # as in Flink, sessions that touch are one
                groups[-1].append(click)
            else:
                groups.append([click])
        for group in groups:
            pages = tuple(sorted({click.page for click in group}))
            sessions.append(Session(user, group[0].at, group[-1].at, len(group), pages))
    return sorted(sessions)


def hits(shown, clicked):
    return sorted(
        Hit(one.campaign, one.advert, click.at - one.at)
        for one in shown
        for click in clicked
        if one.advert == click.advert and one.at // WINDOW == click.at // WINDOW
    )


def alerts(payments):
    found = []
    for card, own in grouped(payments, lambda payment: payment.card).items():
        for payment, following in pairwise([*sorted(own), None]):
            if payment.cents >= SMALL:
                continue
            if following is None or following.at > payment.at + WITHIN:
                found.append(Alert(card, payment.at, "trial"))
            elif following.cents > LARGE:
                found.append(Alert(card, following.at, "fraud"))
    return sorted(found)


class Nexmark:
    """The answers to the nine queries about the first events."""

    def __init__(self, count):
        made = events(count)
        self.persons, self.auctions, self.bids = (
            [e for e in made if type(e) is kind] for kind in (Person, Auction, Bid)
        )
        self.by_id = {person.id: person for person in self.persons}

    def answer(self, query):
        return sorted(getattr(self, f"q{query}")())

    def q0(self):
        return self.bids

    def q1(self):
        return [(bid.auction, bid.bidder, int(bid.price * 908 / 1000), bid.at) for bid in self.bids]

    def q2(self):
        return [(bid.auction, bid.price) for bid in self.bids if not bid.auction % 123]

    def q3(self):
        for auction in self.auctions:
            seller = self.by_id.get(auction.seller)
            if auction.category == 10 and seller is not None and seller.state in {"OR", "ID", "CA"}:
                yield seller.name, seller.city, seller.state, auction.id

    def sold(self):
        """(auction, highest price) of those that were sold."""
        bids = grouped(self.bids, lambda bid: bid.auction)
        for auction in self.auctions:
            prices = [bid.price for bid in bids[auction.id] if auction.at <= bid.at < auction.expires]
            if prices:
                yield auction, max(prices)

    def q4(self):
        for category, own in grouped(self.sold(), lambda sale: sale[0].category).items():
            yield category, sum(price for _, price in own) / len(own)

    def q5(self):
        counts = Counter()
        for bid in self.bids:
            first = bid.at // SLIDE * SLIDE + SLIDE
            counts.update((end, bid.auction) for end in range(first, first + MINUTE, SLIDE))
        for end, own in grouped(counts.items(), lambda item: item[0][0]).items():
            most = max(n for _, n in own)
            yield from [(end, auction, n) for (_, auction), n in own if n == most]

    def q6(self):
        for seller, own in grouped(self.sold(), lambda sale: sale[0].seller).items():
            own.sort(key=lambda sale: (sale[0].expires, sale[0].id))
            for index, (auction, _) in enumerate(own):
                last = [price for _, price in own[max(0, index - 9) : index + 1]]
                yield seller, auction.id, sum(last) / len(last)

    def q7(self):
        for minute, own in grouped(self.bids, lambda bid: bid.at // MINUTE).items():
            best = min(own, key=lambda bid: (-bid.price, bid.at, bid.auction, bid.bidder))
            yield minute * MINUTE, best.auction, best.bidder, best.price, best.at

    def q8(self):
        begun = {(auction.seller, auction.at // MINUTE) for auction in self.auctions}
        for person in self.persons:
            if (person.id, person.at // MINUTE) in begun:
                yield person.id, person.name, person.at // MINUTE * MINUTE
