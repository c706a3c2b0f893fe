"""The pages of `configs/tasks`: each makes a run of the checkpoints that its recipe is for."""

import dataclasses
import functools

import pytest

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.config import files as pages
from plm_jax.configs.tasks import glue, recipes, translation
from plm_jax.runs import transfer
from tests.support import moods
from tests.support import tiny as tiny_config

FORMS = {"sentiment": "classes", "review_scores": "score", "inference": "classes", "choices": "choice"}
OF_ENCODERS = {"entities": "tags", "reading": "span"}
pretrained = functools.cache(moods.pretrained)


def resolved(page, model, tmp_path):
    """Returns the run of a page with a model that is not saved."""
    position = dataclasses.replace(model.attention.position, length=512)
    model = dataclasses.replace(model, attention=dataclasses.replace(model.attention, position=position))
    file = pages.load(f"tasks/{page}")
    run = config.resolve(file.config().to_dict(), file.file)
    return transfer.adapted(run, pretrained(model), str(tmp_path))


@pytest.mark.parametrize("page", [*FORMS, *OF_ENCODERS])
@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_a_page_tunes_a_model_by_each_recipe(page, recipe, tmp_path):
    of = recipes.RECIPES[recipe]
    if of.lm_coefficient and page in OF_ENCODERS:
        pytest.skip("needs an encoder")
    run = resolved(f"{page}:{recipe}", tiny_config.MODEL if of.lm_coefficient else tiny_config.BERT, tmp_path)
    assert run.model.named_heads["task"].kind == run.objective.form == (FORMS | OF_ENCODERS)[page]
    assert run.objective.lm_coefficient == of.lm_coefficient and run.optimizer.b2 == of.b2
    assert run.model.drops and run.train.init_from == str(tmp_path)
    if recipe != "bert":
        assert (run.train.epochs, run.schedule.learning_rate) == (of.epochs, of.learning_rate)


@pytest.mark.parametrize("task", glue.TASKS)
def test_a_task_of_glue_has_the_labels_of_its_form(task, tmp_path):
    run = resolved(f"glue:{task}", tiny_config.BERT, tmp_path)
    assert getattr(run.model.named_heads["task"], "labels", ()) == glue.TASKS[task].form.labels
    assert run.data.sources[task].name == f"glue/{task}" and run.train.epochs == glue.TASKS[task].epochs


def test_an_unknown_recipe_is_one_line():
    with pytest.raises(UserError, match=r"rroberta.*roberta"):
        pages.load("tasks/sentiment:rroberta").config()


def test_the_first_stage_of_translation_needs_an_encoder_decoder(tmp_path):
    with pytest.raises(UserError, match=r"source_encoder requires an encoder-decoder.* kind 'encoder'"):
        resolved("translation:1", tiny_config.BERT, tmp_path)
    assert translation.STAGES["1"].source_encoder == models.SourceEncoderConfig(layers=2)
