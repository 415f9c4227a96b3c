"""Config files and their fields: each that is missing, or not what it should be, is an error that names it."""

import json
from pathlib import Path

from kda_lab.data import CONFIGS


class ConfigError(ValueError):
    """A config that cannot be read; the message is one sentence that names what is missing."""


def need(config, field, why):
    """A field that must be there; ConfigError names it.

    >>> need({"kv_lora_rank": 512}, "kv_lora_rank", "the width of MLA's latent row")
    512
    """
    value = config.get(field)
    if value is None:
        raise ConfigError(f"the config has no '{field}', which says {why}; add it as the model's publisher gives it")
    return value


def whole(config, field, why, least=1):
    """A field that must be a whole number, not below `least`; ConfigError names it.

    >>> whole({"qk_rope_head_dim": 0}, "qk_rope_head_dim", "numbers beside the latent row", least=0)
    0
    """
    value = need(config, field, why)
    if type(value) is not int or value < least:
        raise ConfigError(f"'{field}' is {value!r}, and {why} must be a whole number of at least {least}; correct it")
    return value


def optional(config, field, why, least=1):
    """A whole number that may be missing or null: None then; ConfigError for anything else.

    >>> optional({"head_dim": None}, "head_dim", "the width of a head") is None
    True
    """
    return None if config.get(field) is None else whole(config, field, why, least)


def listed(config, field, why, kind=int):
    """A field that must be a list of numbers or of names; ConfigError names it."""
    value = need(config, field, why)
    if not isinstance(value, list) or not all(type(item) is kind for item in value):
        raise ConfigError(
            f"'{field}' is not a list of {'whole numbers' if kind is int else 'names'}; give it as it is published"
        )
    return value


def load(path):
    """A config file as a dict, ConfigError if it is not one.

    path: a file, or the name of one that comes with the package.

    >>> load("glm-5.3-flash")["model_type"]
    'glm5_next'
    """
    path = Path(path)
    packaged = CONFIGS / f"{path.name.removesuffix('.json')}.json"
    if not path.exists() and path.parent == Path(".") and packaged.exists():
        path = packaged
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(sorted(p.stem for p in CONFIGS.glob("*.json")))
        raise ConfigError(f"cannot read {path} ({error.strerror}); give a config.json, or one of {known}") from None
    except ValueError as error:
        raise ConfigError(
            f"{path} is not JSON ({error}); give the config.json that is published with a model"
        ) from None
    if not isinstance(config, dict):
        raise ConfigError(
            f"{path} holds a {type(config).__name__}, not an object with named fields; give a model's config.json"
        )
    return config


def packaged():
    """Names of the configs that come with the package.

    >>> len(packaged()) >= 23
    True
    """
    return sorted(p.stem for p in CONFIGS.glob("*.json"))
