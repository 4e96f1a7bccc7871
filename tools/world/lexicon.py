"""Words of the embedded world: concepts, what they denote, and the surface forms that name them.

Every table maps a concept to its surface forms; surface forms of one concept are synonyms, and no surface form names
two concepts. Trees (`KINDS`, `ACTIONS`, `PLACES`) give each concept its parent, so that a concept denotes the set of
leaves below it.
"""

from collections.abc import Mapping
from typing import NamedTuple

ROOT = "entity"


class Kind(NamedTuple):
    """A kind of thing: its parent in the taxonomy and its singular surface forms."""

    parent: str
    forms: tuple[str, ...]


class Action(NamedTuple):
    """An action: its parent ("" at the top), its base forms, who does it and to what ("" = intransitive)."""

    parent: str
    forms: tuple[str, ...]
    agents: tuple[str, ...]
    patients: tuple[str, ...]


class Place(NamedTuple):
    """A place: its parent ("" at the top) and the phrases that name it."""

    parent: str
    forms: tuple[str, ...]


def _kinds(table: Mapping[tuple[str, str], str]) -> dict[str, Kind]:
    """Read rows `(parent, concept-forms): children`, where forms are split by "/" and children by blanks."""
    kinds: dict[str, Kind] = {ROOT: Kind("", ("something",))}
    for (parent, forms), children in table.items():
        names = tuple(form.replace("_", " ") for form in forms.split("/"))
        kinds[names[0]] = Kind(parent, names)
        for child in children.split():
            child_forms = tuple(form.replace("_", " ") for form in child.split("/"))
            kinds[child_forms[0]] = Kind(names[0], child_forms)
    return kinds


KINDS: dict[str, Kind] = _kinds(
    {
        (ROOT, "person/human/individual"): "",
        ("person", "clinician/healer"): "doctor/physician nurse/caregiver surgeon",
        ("person", "educator"): "teacher/schoolmaster professor/lecturer coach/trainer",
        ("person", "artist/creator"): "painter/portraitist musician/instrumentalist singer/vocalist dancer/ballerina",
        ("person", "artisan/tradesman"): "carpenter/woodworker blacksmith/ironworker baker/breadmaker",
        ("person", "child/kid/youngster"): "boy/lad girl/lass toddler/infant",
        ("person", "official/functionary"): "policeman/constable judge/magistrate soldier/trooper",
        (ROOT, "animal/creature/beast"): "",
        ("animal", "pet/companion_animal"): "dog/hound cat/feline rabbit/bunny",
        ("animal", "farm_animal/barn_animal"): "cow horse/steed pig/hog",
        ("animal", "bird/fowl"): "eagle crow/raven duck/mallard",
        ("animal", "predator/carnivore"): "wolf lion bear/grizzly",
        ("animal", "insect/bug"): "bee/bumblebee ant butterfly",
        (ROOT, "vehicle/conveyance"): "car/automobile truck/lorry bicycle/bike boat/vessel",
        (ROOT, "food/foodstuff"): "",
        ("food", "fruit"): "apple plum/damson banana",
        ("food", "vegetable"): "carrot potato/spud onion/shallot",
        ("food", "pastry/baked_good"): "cookie/biscuit cake/gateau pancake/flapjack",
        (ROOT, "tool/implement"): "hammer/mallet shovel/spade ladder/stepladder",
        (ROOT, "instrument/musical_device"): "guitar violin/fiddle trumpet/bugle",
        (ROOT, "furnishing/furniture_piece"): "chair/stool table/desk sofa/couch",
        (ROOT, "garment/clothing_item"): "coat/jacket hat/cap shirt/blouse",
        (ROOT, "container/receptacle"): "box/crate basket/hamper bottle/flask",
        (ROOT, "document/text"): "book/novel letter/memo newspaper/gazette",
    }
)

IRREGULAR_PLURALS: dict[str, str] = {
    "child": "children",
    "tradesman": "tradesmen",
    "policeman": "policemen",
    "wolf": "wolves",
}

_ANIMATE = ("person", "animal")
_GOODS = (
    "vehicle", "tool", "instrument", "furnishing", "garment", "container", "document",
)  # fmt: skip
_PORTABLE = ("food", "tool", "instrument", "garment", "container", "document")

ACTIONS: dict[str, Action] = {
    "move": Action("", ("move", "travel"), _ANIMATE, ()),
    "walk": Action("move", ("walk", "stroll"), _ANIMATE, ()),
    "run": Action("move", ("run", "sprint", "jog"), _ANIMATE, ()),
    "jump": Action("move", ("jump", "leap", "hop"), _ANIMATE, ()),
    "swim": Action("move", ("swim", "paddle"), _ANIMATE, ()),
    "climb": Action("move", ("climb", "clamber"), _ANIMATE, ()),
    "rest": Action("", ("rest", "relax"), _ANIMATE, ()),
    "sleep": Action("rest", ("sleep", "doze", "slumber"), _ANIMATE, ()),
    "sit": Action("rest", ("sit", "squat"), _ANIMATE, ()),
    "wait": Action("rest", ("wait", "linger"), _ANIMATE, ()),
    "vocalize": Action("", ("make noise", "make sounds"), ("person",), ()),
    "sing": Action("vocalize", ("sing", "croon"), ("person",), ()),
    "shout": Action("vocalize", ("shout", "yell", "scream"), ("person",), ()),
    "laugh": Action("vocalize", ("laugh", "giggle", "chuckle"), ("person",), ()),
    "cry": Action("vocalize", ("cry", "weep", "sob"), ("person",), ()),
    "handle": Action("", ("handle", "manipulate"), ("person",), (*_PORTABLE,)),
    "carry": Action("handle", ("carry", "haul", "lug"), ("person",), (*_PORTABLE,)),
    "lift": Action("handle", ("lift", "raise", "hoist"), ("person",), (*_PORTABLE,)),
    "pull": Action("handle", ("pull", "drag", "tug"), ("person",), (*_PORTABLE, "vehicle")),
    "throw": Action("handle", ("throw", "toss", "hurl"), ("person",), (*_PORTABLE,)),
    "observe": Action("", ("observe", "perceive"), _ANIMATE, (*_GOODS, *_ANIMATE)),
    "watch": Action("observe", ("watch", "view"), _ANIMATE, (*_GOODS, *_ANIMATE)),
    "inspect": Action("observe", ("inspect", "examine", "check"), ("person",), (*_GOODS, *_ANIMATE)),
    "damage": Action("", ("damage", "impair"), _ANIMATE, _GOODS),
    "break": Action("damage", ("break", "smash", "shatter"), _ANIMATE, _GOODS),
    "burn": Action("damage", ("burn", "scorch"), ("person",), _GOODS),
    "tear": Action("damage", ("tear", "rip", "shred"), _ANIMATE, ("garment", "document", "container")),
    "improve": Action("", ("improve", "enhance"), ("person",), _GOODS),
    "repair": Action("improve", ("repair", "fix", "mend"), ("person",), _GOODS),
    "wash": Action("improve", ("wash", "rinse", "scrub"), ("person",), ("vehicle", "garment", "container", "tool")),
    "trade": Action("", ("trade", "barter"), ("person",), (*_GOODS, "food")),
    "buy": Action("trade", ("buy", "purchase", "acquire"), ("person",), (*_GOODS, "food")),
    "sell": Action("trade", ("sell", "vend"), ("person",), (*_GOODS, "food")),
    "consume": Action("", ("consume", "ingest"), _ANIMATE, ("food",)),
    "devour": Action("consume", ("devour", "gobble"), _ANIMATE, ("food",)),
    "nibble": Action("consume", ("nibble", "munch"), _ANIMATE, ("food",)),
    "oppose": Action("", ("oppose", "confront"), _ANIMATE, _ANIMATE),
    "chase": Action("oppose", ("chase", "pursue"), _ANIMATE, _ANIMATE),
    "attack": Action("oppose", ("attack", "assault"), _ANIMATE, _ANIMATE),
    "scare": Action("oppose", ("scare", "frighten", "startle"), _ANIMATE, _ANIMATE),
    "support": Action("", ("support", "care for"), ("person",), _ANIMATE),
    "help": Action("support", ("help", "assist", "aid"), ("person",), _ANIMATE),
    "protect": Action("support", ("protect", "guard", "defend"), ("person",), _ANIMATE),
    "feed": Action("support", ("feed", "nourish"), ("person",), _ANIMATE),
    "produce": Action("", ("produce", "create"), ("person",), (*_GOODS, "food")),
    "build": Action("produce", ("build", "construct", "assemble"), ("person",), ("vehicle", "tool", "instrument")),
    "draw": Action("produce", ("draw", "sketch"), ("person",), _GOODS),
    "operate": Action("", ("operate", "control"), ("person",), ("vehicle",)),
    "drive": Action("operate", ("drive", "steer"), ("person",), ("vehicle",)),
    "hide": Action("", ("hide", "conceal"), _ANIMATE, _PORTABLE),
    "find": Action("", ("find", "discover", "locate"), _ANIMATE, (*_PORTABLE, *_ANIMATE)),
}

# base form: (-ing, past, past participle), where the regular rules do not hold
IRREGULAR_VERBS: dict[str, tuple[str, str, str]] = {
    "run": ("running", "ran", "run"),
    "swim": ("swimming", "swam", "swum"),
    "jog": ("jogging", "jogged", "jogged"),
    "hop": ("hopping", "hopped", "hopped"),
    "sleep": ("sleeping", "slept", "slept"),
    "sit": ("sitting", "sat", "sat"),
    "squat": ("squatting", "squatted", "squatted"),
    "make": ("making", "made", "made"),
    "sing": ("singing", "sang", "sung"),
    "weep": ("weeping", "wept", "wept"),
    "sob": ("sobbing", "sobbed", "sobbed"),
    "lug": ("lugging", "lugged", "lugged"),
    "drag": ("dragging", "dragged", "dragged"),
    "tug": ("tugging", "tugged", "tugged"),
    "throw": ("throwing", "threw", "thrown"),
    "break": ("breaking", "broke", "broken"),
    "tear": ("tearing", "tore", "torn"),
    "rip": ("ripping", "ripped", "ripped"),
    "shred": ("shredding", "shredded", "shredded"),
    "scrub": ("scrubbing", "scrubbed", "scrubbed"),
    "buy": ("buying", "bought", "bought"),
    "sell": ("selling", "sold", "sold"),
    "feed": ("feeding", "fed", "fed"),
    "build": ("building", "built", "built"),
    "draw": ("drawing", "drew", "drawn"),
    "drive": ("driving", "drove", "driven"),
    "hide": ("hiding", "hid", "hidden"),
    "find": ("finding", "found", "found"),
    "control": ("controlling", "controlled", "controlled"),
}

PLACES: dict[str, Place] = {
    "indoors": Place("", ("indoors", "inside a building")),
    "kitchen": Place("indoors", ("in the kitchen", "in the cookhouse")),
    "school": Place("indoors", ("at the school", "at the academy")),
    "hospital": Place("indoors", ("in the hospital", "in the clinic")),
    "shop": Place("indoors", ("in the shop", "in the store")),
    "library": Place("indoors", ("in the library", "in the reading room")),
    "theatre": Place("indoors", ("in the theatre", "in the playhouse")),
    "outdoors": Place("", ("outdoors", "in the open air")),
    "garden": Place("outdoors", ("in the garden", "in the backyard")),
    "forest": Place("outdoors", ("in the forest", "in the woods")),
    "meadow": Place("outdoors", ("in the meadow", "in the pasture")),
    "beach": Place("outdoors", ("on the beach", "on the shore")),
    "street": Place("outdoors", ("in the street", "on the road")),
    "river": Place("outdoors", ("by the river", "by the stream")),
    "market": Place("outdoors", ("at the market", "at the bazaar")),
}

TIMES: dict[str, tuple[str, ...]] = {
    "morning": ("in the morning", "at dawn", "at sunrise"),
    "noon": ("at noon", "at midday"),
    "evening": ("in the evening", "at dusk", "at sunset"),
    "night": ("at night", "after dark", "at midnight"),
}

# dimension of manner: pole -> adverbs
MANNERS: dict[str, tuple[str, ...]] = {
    "quickly": ("quickly", "rapidly", "swiftly"),
    "slowly": ("slowly", "sluggishly", "unhurriedly"),
    "loudly": ("loudly", "noisily"),
    "quietly": ("quietly", "silently", "noiselessly"),
    "carefully": ("carefully", "cautiously"),
    "recklessly": ("recklessly", "carelessly"),
}
MANNER_DIMENSIONS: dict[str, tuple[str, str]] = {
    "pace": ("quickly", "slowly"),
    "volume": ("loudly", "quietly"),
    "care": ("carefully", "recklessly"),
}

# dimension -> level -> adjectives; the levels of a dimension exclude each other unless PROPERTY_PARENTS nests them
PROPERTIES: dict[str, dict[str, tuple[str, ...]]] = {
    "size": {
        "tiny": ("tiny", "minuscule"),
        "small": ("small", "little"),
        "large": ("large", "big"),
        "huge": ("huge", "enormous", "gigantic"),
    },
    "age": {"young": ("young", "youthful"), "elderly": ("elderly", "aged")},
    "mood": {
        "happy": ("happy", "cheerful", "joyful"),
        "sad": ("sad", "gloomy", "miserable"),
        "angry": ("angry", "furious", "irate"),
    },
    "wealth": {"rich": ("rich", "wealthy", "affluent"), "poor": ("poor", "needy", "penniless")},
    "courage": {"brave": ("brave", "courageous", "fearless"), "timid": ("timid", "shy")},
    "colour": {
        "red": ("red", "crimson", "scarlet"),
        "blue": ("blue", "azure"),
        "green": ("green", "emerald"),
        "black": ("black", "ebony"),
        "white": ("white", "ivory"),
        "yellow": ("yellow", "golden"),
    },
    "newness": {"new": ("new", "modern"), "ancient": ("ancient", "antique")},
    "dirt": {"clean": ("clean", "spotless"), "dirty": ("dirty", "filthy", "grimy")},
    "quality": {
        "excellent": ("excellent", "superb", "splendid"),
        "good": ("good", "decent"),
        "mediocre": ("mediocre", "average"),
        "bad": ("bad", "inferior"),
        "awful": ("awful", "terrible", "dreadful"),
    },
}
# a level that lies inside another one: what is tiny is small
PROPERTY_PARENTS: dict[str, str] = {"tiny": "small", "huge": "large", "excellent": "good", "awful": "bad"}
PROPERTIES_OF: dict[str, tuple[str, ...]] = {
    "person": ("size", "age", "mood", "wealth", "courage"),
    "animal": ("size", "age", "courage", "colour", "dirt"),
    "food": ("size", "colour", "quality"),
    "": ("size", "colour", "newness", "dirt", "quality"),
}

MAX_COUNT = 24


class Count(NamedTuple):
    """How many: the set low..high of possible numbers and the determiners that say so."""

    low: int
    high: int
    forms: tuple[str, ...]


COUNTS: dict[str, Count] = {
    "one": Count(1, 1, ("a", "one", "a single")),
    "two": Count(2, 2, ("two", "a pair of", "a couple of")),
    "three": Count(3, 3, ("three", "a trio of")),
    "four": Count(4, 4, ("four", "a quartet of")),
    "six": Count(6, 6, ("six", "half a dozen")),
    "ten": Count(10, 10, ("ten", "10")),
    "twelve": Count(12, 12, ("twelve", "a dozen")),
    "some": Count(2, MAX_COUNT, ("some", "a group of", "")),
    "few": Count(3, 6, ("a few", "several")),
    "many": Count(7, MAX_COUNT, ("many", "numerous", "a lot of")),
}
