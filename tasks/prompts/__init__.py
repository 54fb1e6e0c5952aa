"""Reading prompt datasets and rendering them with the policy's own chat template.

`read_prompts` (reading.py) yields one `Prompt` a row from any source in `sources`; `PromptRenderer` (rendering.py)
turns a prompt into token ids. A new source is a module in `sources` with a function `rows(config)` that yields
`SourceRow`s, and a line in `sources/registry.py`. What answers the prompts lives in `tasks.generation`.

A row's prompt is its `prompt` (text or chat messages), `messages` or `input_ids`. Every other column reaches the
rewards as it is; rewards that need the right answer take the first of the columns `answer`, `ground_truth`,
`solution` and `reward_model` (its field `ground_truth`) that is there and not null.
"""
