"""config.json files of versions that had other names are read as they were meant."""

import copy
import json
import pathlib
from dataclasses import replace

import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.config import files as pages
from plm_jax.config import migrations, overrides

# What the config.json of three published configs held before the first fields were renamed.
BEFORE = json.loads((pathlib.Path(__file__).parent / "golden" / "configs_before_renaming.json").read_text())


def placeless(data):
    """A config's data without where it lies, nor which rows of a file are read: the reviews' has more of them now."""
    sources = {
        name: replace(source, **dict.fromkeys((*source.places, *(["only"] if hasattr(source, "only") else [])), ""))
        for name, source in data.sources.items()
    }
    return replace(data, sources=sources)


@pytest.mark.parametrize("name", BEFORE)
def test_a_config_json_of_before_is_the_config_of_today(name):
    today = config.from_dict(pages.load(name.replace(".py", "")).config())
    given = copy.deepcopy(BEFORE[name])
    read = config.from_saved(given)
    for section in ("model", "objective", "schedule"):
        assert getattr(read, section) == getattr(today, section)
    assert placeless(read.data) == placeless(today.data)
    assert config.model_from_saved(given["model"], "model") == today.model
    assert given == BEFORE[name]
    assert config.from_saved(config.to_dict(read)) == read


def test_what_was_renamed_is_in_the_files_of_before():
    """So that the test above reads each of the names."""
    texts = list(map(json.dumps, BEFORE.values()))
    kinds = [kind for of_part in migrations.KINDS.values() for kind in of_part if kind != "seqio_examples"]
    for name in (*(renamed.old for renamed in migrations.FIELDS), *kinds):
        assert any(f'"{name}"' in text for text in texts), name


def test_a_name_of_before_in_a_config_is_refused_with_that_of_today():
    with pytest.raises(UserError, match=r"there is no field config\.data\.examples: it is called inputs_targets now"):
        config.from_dict(BEFORE["demo.py:t5-tasks"])
    tree = migrations.migrated(BEFORE["albert.py:base"])
    tree["model"]["embedding"]["table_width"] = 7
    line = r"there is no field config\.model\.embedding\.table_width: it is called embedding_size now"
    with pytest.raises(UserError, match=line):
        config.from_dict(tree)


def test_a_name_of_before_on_the_command_line_is_answered_with_that_of_today():
    tree = pages.load("albert:base").config().to_dict()
    line = r"there is no field config\.model\.embedding\.table_width: it is called embedding_size now"
    with pytest.raises(UserError, match=line):
        overrides.apply(tree, [("model.embedding.table_width", "64")], config.Run)


def test_fields_of_the_same_name_in_models_of_ones_own_stay():
    tree = {"model": {"kind": "my_own", "embedding": {"table_width": 3}}}
    assert migrations.migrated(tree) == tree


def test_the_kernel_of_before_is_that_of_today():
    """Files say `splash` where a run asked for flash attention on TPUs by the name of jax's."""
    tree = BEFORE["albert.py:base"]
    tree = tree | {"model": tree["model"] | {"attention_kernel": "splash"}}
    assert config.from_saved(tree).model.attention_kernel == "flash"
    assert config.from_dict(config.to_dict(config.from_saved(tree))).model.attention_kernel == "flash"
